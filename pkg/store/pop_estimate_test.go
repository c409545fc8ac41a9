package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestAnEstimateCountsTheFullestFreeLanes(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	blob, _ := packed(t, 10, 10)
	b.lay("q", "a", laid{0, 10, hour, blob})
	b.lay("q", "b", laid{0, 10, hour, blob}, laid{10, 10, hour, blob})
	estimate := func(queue, group string, partitions, limit int) int {
		n, err := b.store.PopEstimate(t.Context(), store.DefaultTenant(), queue, group, partitions, limit)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 20, estimate("q", "g", 1, 1000))
	require.Equal(t, 30, estimate("q", "g", 2, 1000))
	require.Equal(t, 30, estimate("q", "g", 0, 1000))
	require.Equal(t, 7, estimate("q", "g", 0, 7))
	require.Zero(t, estimate("nowhere", "g", 0, 1000))

	b.specific("q", "b", popArgs("g", 15)) // a lease hides its lane
	require.Equal(t, 10, estimate("q", "g", 0, 1000))
	require.Equal(t, 30, estimate("q", "other", 0, 1000))
}
