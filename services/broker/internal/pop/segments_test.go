package pop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

const frames = 100

// large is a segment of many frames, as the database stores it.
func (b *bundle) large(t testing.TB, partition, payload string) store.Popped {
	t.Helper()
	payloads := make([]string, frames)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`%q`, fmt.Sprint(i, payload))
	}
	return b.claimOf(t, partition, 0, payloads...)
}

// one pops the frame at a place of a segment, with its content or without.
func (b *bundle) one(t testing.TB, whole store.Popped, at int, sent bool) (data string, known []store.KnownSegment, err error) {
	t.Helper()
	s := whole.Segments[0]
	s.Start, s.Take = at, 1
	if !sent {
		s.Blob = nil
	}
	whole.Segments = []store.PoppedSegment{s}
	b.store.add([]store.Popped{whole})
	q := query(false, 0)
	q.Batch = 1
	body, err := b.svc.Pop(t.Context(), pop.Request{
		Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: whole.Partition, Query: q,
	})
	for _, c := range b.store.calls {
		if c.name == "specific" {
			known = c.args.Known
		}
	}
	if err != nil {
		return "", known, err
	}
	return string(decode(t, body).Messages[0].Data), known, nil
}

func TestPartsOfALargeSegmentAreSentOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	whole := b.large(t, "p", "")
	data, known, err := b.one(t, whole, 0, true)
	require.NoError(t, err)
	require.Equal(t, `"0"`, data)
	require.Empty(t, known)
	for i := 1; i < frames; i++ {
		data, known, err = b.one(t, whole, i, false)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf(`"%d"`, i), data)
		require.Equal(t, []store.KnownSegment{{
			PartitionID: whole.PartitionID, Base: whole.Segments[0].Base, CreatedAt: whole.Segments[0].CreatedAt,
		}}, known)
	}
	_, known, err = b.one(t, b.large(t, "p", ""), 0, true)
	require.NoError(t, err)
	require.Empty(t, known, "the end was delivered")
}

func TestABatchThatIsDeliveredAgainIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	whole := b.large(t, "p", "")
	_, _, err := b.one(t, whole, 50, true)
	require.NoError(t, err)
	at, err := time.Parse(time.RFC3339, whole.Segments[0].CreatedAt)
	require.NoError(t, err)
	stored := store.Segment{Base: whole.Segments[0].Base, CreatedAt: at, Blob: whole.Segments[0].Blob}
	b.store.stored = map[uuid.UUID]store.Segment{whole.PartitionID: stored}
	data, known, err := b.one(t, whole, 10, false)
	require.NoError(t, err)
	require.Len(t, known, 1, "it was to go on behind 50")
	require.Equal(t, `"10"`, data)
	require.Equal(t, 1, b.store.count("segment"))

	// Of a segment that has gone, or was replaced, nothing is delivered.
	stored.CreatedAt = at.Add(time.Microsecond)
	for _, found := range []bool{false, true} {
		whole = b.large(t, "p", "")
		_, _, err = b.one(t, whole, 50, true)
		require.NoError(t, err)
		if found {
			b.store.stored[whole.PartitionID] = stored
		}
		_, _, err = b.one(t, whole, 10, false)
		require.ErrorIs(t, err, pop.ErrFailed)
	}
}

func TestFramesAreKeptForSomePopsAhead(t *testing.T) {
	t.Parallel()
	const limit = 4 << 20
	b := setup(t, pop.Config{SegmentCache: limit})
	whole := b.large(t, "p", strings.Repeat("x", 60_000)) // 6 MB, of which 1 MiB is kept at most
	sent := 0
	for i := range frames {
		_, known, err := b.one(t, whole, i, true)
		require.NoError(t, err)
		if len(known) == 0 {
			sent++
		}
	}
	require.Greater(t, sent, 5)
	require.Less(t, sent, 30)
}

func TestAnotherSegmentInThePlaceOfAKnownOneIsNotMistakenForIt(t *testing.T) {
	t.Parallel()
	b := setup(t, pop.Config{})
	whole := b.large(t, "p", "")
	_, _, err := b.one(t, whole, 0, true)
	require.NoError(t, err)
	other := b.large(t, "p", "other") // of another partition that took the name
	_, _, err = b.one(t, other, 1, false)
	require.ErrorIs(t, err, pop.ErrFailed)
	data, _, err := b.one(t, other, 1, true)
	require.NoError(t, err)
	require.Equal(t, `"1other"`, data)
}

func TestTheSegmentCacheIsBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit int64
		kept  int // of the last ten lanes
	}{
		"off": {-1, 0}, "too small for one": {400, 0}, "some": {50_000, 7}, "all": {10 << 20, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, pop.Config{SegmentCache: c.limit})
			lanes := make([]store.Popped, 10)
			for i := range lanes {
				lanes[i] = b.large(t, fmt.Sprint("p", i), strings.Repeat("x", 50))
				_, _, err := b.one(t, lanes[i], 0, true)
				require.NoError(t, err)
			}
			kept := 0
			for i := len(lanes) - 1; i >= 0; i-- {
				_, known, err := b.one(t, lanes[i], 1, true)
				require.NoError(t, err)
				kept += len(known)
			}
			if name != "some" {
				require.Equal(t, c.kept, kept)
				return
			}
			require.Positive(t, kept)
			require.LessOrEqual(t, kept, c.kept)
		})
	}
}
