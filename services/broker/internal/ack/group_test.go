package ack_test

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ack"
)

// The groups of a request in which items of several partitions and leases stand in
// any order, some of them in runs.
func TestItemsAreGroupedWhereverTheyStand(t *testing.T) {
	t.Parallel()
	ids := []string{uuid.NewString(), uuid.NewString(), uuid.NewString(), "none"}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(1, seed))
		items := make([]wire.AckItem, rng.IntN(40))
		var want [][]int
		var refused []int
		at := map[wire.AckItem]int{}
		for i := range items {
			if i == 0 || rng.IntN(3) == 0 {
				items[i] = wire.AckItem{PartitionID: ids[rng.IntN(4)], LeaseID: strconv.Itoa(rng.IntN(2)), Group: "g", Status: wire.AckCompleted}
			} else {
				items[i] = items[i-1]
			}
			items[i].TransactionID = ""
			if items[i].PartitionID == "none" {
				refused = append(refused, i)
				continue
			}
			n, ok := at[items[i]]
			if !ok {
				n = len(want)
				at[items[i]], want = n, append(want, nil)
			}
			want[n] = append(want[n], i)
			items[i].TransactionID = strconv.Itoa(i)
		}
		groups, lost := ack.Groups(items)
		require.Equal(t, want, groups)
		require.Equal(t, refused, lost)
	}
}
