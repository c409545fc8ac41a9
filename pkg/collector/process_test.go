package collector

import (
	"math"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestShareIsInHundredthsOfAPercent(t *testing.T) {
	t.Parallel()
	require.Equal(t, int64(5000), share(30*time.Second, time.Minute))
	require.Equal(t, int64(20_000), share(2*time.Minute, time.Minute), "of two processors")
	require.Equal(t, int64(1), share(time.Millisecond, 10*time.Second))
	require.Zero(t, share(time.Second, 0))
}

func TestTheWaitsSinceTheLastSample(t *testing.T) {
	t.Parallel()
	h := &metrics.Float64Histogram{Buckets: []float64{math.Inf(-1), 0.001, 0.003, 0.007, math.Inf(1)}, Counts: []uint64{4, 3, 1, 0}}
	mean, longest := since(h, nil)
	require.InDelta(t, (4*0.5+3*2+1*5)/8, *mean, 1e-9)
	require.InDelta(t, 7, *longest, 1e-9)

	mean, longest = since(h, []uint64{4, 1, 1, 0})
	require.InDelta(t, 2, *mean, 1e-9)
	require.InDelta(t, 3, *longest, 1e-9)

	mean, longest = since(h, h.Counts)
	require.Nil(t, mean, "no sample is no 0")
	require.Nil(t, longest)

	h.Counts[3] = 1
	_, longest = since(h, []uint64{4, 3, 1, 0})
	require.InDelta(t, 7, *longest, 1e-9, "the last bucket has no upper end")
}

func TestAProcessKnowsItself(t *testing.T) {
	t.Parallel()
	p := newProcess()
	p.began, p.at = p.began.Add(-time.Minute), p.at.Add(-10*time.Second)
	p.user -= 5 * time.Second
	p.system -= time.Second
	p.waits = nil
	var f store.MetricsFlush
	p.sample(&f)
	require.InDelta(t, 10, f.Interval.Seconds(), 5)
	require.Positive(t, f.System.CPU.System)
	require.Greater(t, f.System.CPU.User, f.System.CPU.System)
	require.Greater(t, f.System.Memory.RSS, int64(1<<20))
	require.GreaterOrEqual(t, f.System.Uptime, int64(60))
	require.NotNil(t, f.Worker.AvgLoopLag, "since the start of the process goroutines have waited")
	require.GreaterOrEqual(t, *f.Worker.MaxLoopLag, *f.Worker.AvgLoopLag)
}

func TestTheLagOfAProcessIsThatOfTheLastWindow(t *testing.T) {
	t.Parallel()
	var lag loopLag
	now := time.Now()
	first := lag.read(now)
	require.Positive(t, first, "since the start of the process goroutines have waited")
	lag.mean = 17
	require.InDelta(t, 17, lag.read(now.Add(lagWindow-1)), 0, "two readers do not disturb each other")
	require.NotEqual(t, 17.0, lag.read(now.Add(lagWindow)))
}
