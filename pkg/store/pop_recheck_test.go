package store_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestLanesPendingAgreesWithTheProbeOfOne(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.lay("q", "untouched", laid{0, 2, hour, nil})
	b.start(b.lay("q", "consumed", laid{0, 2, hour, nil}), "g", 1)
	b.start(b.lay("q", "pending", laid{0, 2, hour, nil}), "g", 0)
	emptied := b.lay("q", "emptied", laid{0, 2, hour, nil})
	b.start(emptied, "g", 0)
	b.exec(`UPDATE queen.log_partitions SET log_start = 2 WHERE id = $1`, emptied)
	var lanes []store.LaneGroup
	for _, queue := range []string{"q", "nowhere"} {
		for _, partition := range []string{"untouched", "consumed", "pending", "emptied", "missing"} {
			for _, group := range []string{"g", "h"} {
				lanes = append(lanes, store.LaneGroup{Tenant: store.DefaultTenant(), Queue: queue, Partition: partition, Group: group})
			}
		}
	}
	found, err := b.store.LanesPending(t.Context(), lanes)
	require.NoError(t, err)
	var want []int
	for i, l := range lanes {
		pending, err := b.store.PartitionHasPending(t.Context(), l.Tenant, l.Queue, l.Partition, l.Group)
		require.NoError(t, err)
		if pending {
			want = append(want, i)
		}
	}
	require.ElementsMatch(t, want, found)
	require.NotEmpty(t, want)
	require.Less(t, len(want), len(lanes))
}

func TestSegmentsTheCallerHoldsAreNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid := b.lay("q", "p", laid{0, 3, hour, []byte("one")}, laid{3, 2, hour, []byte("two")})
	b.lay("q", "p2", laid{0, 1, hour, []byte("three")})
	p := popArgs("g", 10)
	p.AutoAck, p.Budget = true, 1
	first, err := b.store.PopSpecific(t.Context(), "q", "p", p)
	require.NoError(t, err)
	seg := first[0].Segments[0]
	require.Equal(t, "one", string(seg.Blob))
	require.Equal(t, 3, seg.Count)

	held := store.KnownSegment{PartitionID: pid, Base: seg.Base, CreatedAt: seg.CreatedAt}
	for name, known := range map[string]store.KnownSegment{
		"another time":      {PartitionID: pid, CreatedAt: "2020-01-01T00:00:00.000000Z"},
		"another segment":   {PartitionID: pid, Base: 3, CreatedAt: seg.CreatedAt},
		"another partition": {PartitionID: uuid.New(), CreatedAt: seg.CreatedAt},
	} {
		p.Group, p.Known = name, []store.KnownSegment{known}
		popped, err := b.store.PopSpecific(t.Context(), "q", "p", p)
		require.NoError(t, err)
		require.Equal(t, "one", string(popped[0].Segments[0].Blob), name)
	}
	p.Known, p.Budget, p.MaxPartitions = []store.KnownSegment{held}, 10, 2
	for i, pop := range []func() ([]store.Popped, error){
		func() ([]store.Popped, error) { return b.store.PopSpecific(t.Context(), "q", "p", p) },
		func() ([]store.Popped, error) {
			result, err := b.store.PopList(t.Context(), "q", []string{"p", "p2"}, false, p)
			return result.Claimed, err
		},
	} {
		p.Group = fmt.Sprint("g", i)
		popped, err := pop()
		require.NoError(t, err)
		require.Nil(t, popped[0].Segments[0].Blob)
		require.Equal(t, []int{0, 3, 3}, []int{popped[0].Segments[0].Start, popped[0].Segments[0].Take, popped[0].Segments[0].Count})
		require.Equal(t, "two", string(popped[0].Segments[1].Blob))
		if i == 1 {
			require.Equal(t, "three", string(popped[1].Segments[0].Blob))
		}
	}
}
