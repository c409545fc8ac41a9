package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLogLinesOfOneKind(t *testing.T) {
	t.Parallel()
	text := `{"msg":"swept","elapsed_ms":15}
{"msg":"another","elapsed_ms":"soon"}
panic: not JSON
{"msg":"swept","elapsed_ms":25}
{"msg":"swept","ela`
	got, err := decodeLines[cycleLine](strings.NewReader(text), says(cycleMsg))
	require.NoError(t, err)
	require.Equal(t, []cycleLine{{ElapsedMs: 15}, {ElapsedMs: 25}}, got)

	_, err = decodeLines[cycleLine](strings.NewReader(text), says("another"))
	require.ErrorContains(t, err, `"soon"`)
}

func TestPeakMemory(t *testing.T) {
	t.Parallel()
	got, err := parsePeak([]byte("Name:\tqueen\nVmPeak:\t 9000 kB\nVmHWM:\t 100 kB\nVmRSS:\t 90 kB\n"))
	require.NoError(t, err)
	require.Equal(t, 102400.0, got)
	for _, broken := range []string{"", "Name:\tqueen\n", "Name:\tqueen\nVmHWM:\n", "Name:\tqueen\nVmHWM:\tmany kB\n"} {
		_, err := parsePeak([]byte(broken))
		require.Error(t, err, broken)
	}
	most, err := peakMemory(os.Getpid())
	require.NoError(t, err)
	now, err := resident(os.Getpid())
	require.NoError(t, err)
	require.GreaterOrEqual(t, most, now/2)
}

func TestHashesOfOldSegmentsAreGone(t *testing.T) {
	t.Parallel()
	require.Equal(t, 10, bulk{segments: 10, age: 3 * time.Hour, until: 2 * time.Hour}.withoutHashes())
	require.Equal(t, 0, bulk{segments: 10, age: time.Hour}.withoutHashes(), "an hour is kept")
	require.Equal(t, 5, bulk{segments: 10, age: 2 * time.Hour}.withoutHashes())
}

func TestStaleBacklogHasTheWantedSize(t *testing.T) {
	t.Parallel()
	all := staleBulk("q", 100_000)
	require.Equal(t, []int{100, 1000, 100_000}, []int{all.lanes, all.segments, all.total()})
	few := staleBulk("q", 400)
	require.Equal(t, []int{1, 400, 400}, []int{few.lanes, few.segments, few.total()})
}

func TestPausesOfRefreshes(t *testing.T) {
	t.Parallel()
	end := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	r := refreshes{{end(100), 100 * time.Millisecond}, {end(2150), 50 * time.Millisecond}, {end(3160), 10 * time.Millisecond}}
	require.Equal(t, []float64{100, 50, 10}, r.millis())
	require.InDeltaSlice(t, []float64{20, 20}, r.pauses(), 1e-6)
}
