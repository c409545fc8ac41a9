package mint_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/mint"
)

func TestFillAscendsWithoutRepeating(t *testing.T) {
	t.Parallel()
	ids := make([]uuid.UUID, 1000)
	require.NoError(t, mint.NewSource().Fill(ids))
	for i, id := range ids {
		require.Equal(t, uuid.Version(7), id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
		if i > 0 {
			require.Positive(t, bytes.Compare(id[:], ids[i-1][:]))
		}
	}
}

func TestIDsTellTheTime(t *testing.T) {
	t.Parallel()
	s := mint.NewSource()
	before := time.Now().UnixMilli()
	ids := make([]uuid.UUID, 100)
	require.NoError(t, s.Fill(ids))
	for _, id := range ids {
		sec, nsec := id.Time().UnixTime()
		at := time.Unix(sec, nsec).UnixMilli()
		require.GreaterOrEqual(t, at, before)
		require.LessOrEqual(t, at, time.Now().UnixMilli()+1)
	}
}

func TestConcurrentSourcesNeverShareAnID(t *testing.T) {
	t.Parallel()
	s := mint.NewSource()
	all := make([][]uuid.UUID, 8)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			all[i] = make([]uuid.UUID, 500)
			for j := range all[i] {
				id, err := s.New()
				if err != nil {
					t.Error(err)
					return
				}
				all[i][j] = id
			}
		})
	}
	wg.Wait()
	seen := make(map[uuid.UUID]bool)
	for _, ids := range all {
		for _, id := range ids {
			require.False(t, seen[id])
			seen[id] = true
		}
	}
}

func BenchmarkFill100(b *testing.B) {
	b.ReportAllocs()
	s := mint.NewSource()
	ids := make([]uuid.UUID, 100)
	for b.Loop() {
		if err := s.Fill(ids); err != nil {
			b.Fatal(err)
		}
	}
}
