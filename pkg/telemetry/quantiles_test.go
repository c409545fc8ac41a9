package telemetry_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/telemetry"
)

func told(q *telemetry.Quantiles) map[string]float64 {
	values := map[string]float64{}
	q.Each(func(quantile string, value float64) { values[quantile] = value })
	return values
}

func TestQuantilesAreThoseOfLately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := telemetry.NewQuantiles()
		require.Equal(t, map[string]float64{"0.5": 0, "0.99": 0}, told(q), "nothing is no time at all")
		for v := range 1000 {
			q.Observe(float64(v))
		}
		require.InDelta(t, 500, told(q)["0.5"], 60)
		require.InDelta(t, 990, told(q)["0.99"], 2)
		time.Sleep(50 * time.Second)
		require.InDelta(t, 990, told(q)["0.99"], 2)
		time.Sleep(71 * time.Second)
		require.Equal(t, map[string]float64{"0.5": 0, "0.99": 0}, told(q), "they are forgotten")
		q.Observe(7)
		require.Equal(t, map[string]float64{"0.5": 7, "0.99": 7}, told(q))
	})
}

func TestQuantilesMayBeObservedByMany(t *testing.T) {
	t.Parallel()
	q := telemetry.NewQuantiles()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				q.Observe(3)
				told(q)
			}
		})
	}
	all.Wait()
	require.Equal(t, map[string]float64{"0.5": 3, "0.99": 3}, told(q))
}
