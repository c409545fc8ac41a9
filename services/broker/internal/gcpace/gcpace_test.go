package gcpace_test

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/gcpace"
)

const mib = 1 << 20

func TestPercent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		live, floor uint64
		want        int
	}{
		{8 * mib, 64 * mib, 700},
		{16 * mib, 64 * mib, 300},
		{22 * mib, 64 * mib, 200},
		{64 * mib, 64 * mib, 200},
		{1 << 40, 64 * mib, 200},
		{0, 64 * mib, 1500},
		{4 * mib, 64 * mib, 1500},
		{8 * mib, 0, 200},
		{8 * mib, 1 << 62, 1<<31 - 1},
	} {
		require.Equal(t, tt.want, gcpace.Percent(tt.live, tt.floor, 200), "%d of %d", tt.live, tt.floor)
	}
}

var sink []byte

// collections is how often the heap is collected while garbage is made.
func collections(garbage int) uint32 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range garbage / (64 << 10) {
		sink = make([]byte, 64<<10)
	}
	runtime.ReadMemStats(&after)
	return after.NumGC - before.NumGC
}

func TestASmallHeapIsCollectedSeldom(t *testing.T) { //nolint:paralleltest // the collector is the process's
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	runtime.GC()
	often := collections(512 * mib)
	stop := gcpace.Keep(128*mib, 100)
	runtime.GC()
	seldom := collections(512 * mib)
	require.Less(t, seldom*4, often, "%d collections, and %d without", seldom, often)
	require.LessOrEqual(t, seldom, uint32(512/64))

	// A heap above the floor is collected as ever.
	held := make([]byte, 256*mib)
	runtime.GC()
	require.Eventually(t, func() bool {
		now := debug.SetGCPercent(1000) // tells what was in force
		debug.SetGCPercent(now)
		return now == 100
	}, 10*time.Second, time.Millisecond)
	runtime.KeepAlive(held)
	stop()
	require.Equal(t, 100, debug.SetGCPercent(100))
}
