package rates_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/rates"
)

// counts are what a source of the test tells.
type counts struct{ pushed, popped, parked atomic.Int64 }

func (c *counts) tell(s *rates.Sample) {
	s.Total("push_s", c.pushed.Load())
	s.Total("pop_s", c.popped.Load())
	s.State(slog.Int64("parked", c.parked.Load()))
}

// on runs a reporter inside a bubble.
func on(t *testing.T, every time.Duration, c *counts, test func(r *rates.Reporter, lines *logtest.Recorder, stop func())) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewRecorder()
		r := rates.New(rates.Config{Every: every}, log, c.tell)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		test(r, lines, func() {
			cancel()
			require.NoError(t, <-done)
		})
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// said are the lines so far, without their time and level.
func said(lines *logtest.Recorder) (out []string) {
	for line := range strings.Lines(lines.String()) {
		if _, text, ok := strings.Cut(line, "msg="); ok {
			out = append(out, strings.TrimSuffix(text, "\n"))
		}
	}
	return out
}

func TestALineTellsWhatMovedSinceTheOneBefore(t *testing.T) {
	c := &counts{}
	c.pushed.Store(1000) // before it began
	on(t, 10*time.Second, c, func(_ *rates.Reporter, lines *logtest.Recorder, stop func()) {
		c.pushed.Add(25)
		c.popped.Store(100)
		c.parked.Store(7)
		pass(10 * time.Second)
		require.Equal(t, []string{"rates push_s=2.5 pop_s=10 parked=7"}, said(lines))
		pass(time.Hour)
		require.Len(t, said(lines), 1, "nothing moved")
		c.parked.Store(8)
		pass(time.Minute)
		require.Len(t, said(lines), 1, "a state moves nothing")
		c.popped.Add(1)
		pass(10 * time.Second)
		require.Equal(t, "rates push_s=0 pop_s=0.1 parked=8", said(lines)[1], "what is told is that of one interval")
		c.pushed.Add(2)
		pass(time.Second)
		stop()
		require.Equal(t, "rates push_s=2 pop_s=0 parked=8", said(lines)[2], "the end tells the rest")
	})
}

func TestTheIntervalHasAFloor(t *testing.T) {
	c := &counts{}
	on(t, 0, c, func(_ *rates.Reporter, lines *logtest.Recorder, stop func()) {
		c.pushed.Add(1)
		pass(rates.EveryFloor - time.Nanosecond)
		require.Empty(t, said(lines))
		pass(time.Nanosecond)
		require.Len(t, said(lines), 1)
		stop()
	})
}

func TestDetailsFollowTheirLine(t *testing.T) {
	c := &counts{}
	on(t, 10*time.Second, c, func(r *rates.Reporter, lines *logtest.Recorder, stop func()) {
		var told []time.Duration
		r.Detail(func(_ context.Context, elapsed time.Duration) {
			require.Len(t, said(lines), 1)
			told = append(told, elapsed)
		})
		pass(10 * time.Second)
		require.Empty(t, told)
		c.pushed.Add(1)
		pass(10 * time.Second)
		require.Equal(t, []time.Duration{10 * time.Second}, told)
		stop()
		require.Len(t, told, 1)
	})
}

func TestRatesDoNotVanishInRounding(t *testing.T) {
	t.Parallel()
	require.Equal(t, 0.01, rates.PerSecond(1, time.Hour))
	require.Equal(t, 0.0, rates.PerSecond(0, time.Hour))
	require.Equal(t, 33.34, rates.PerSecond(100, 3*time.Second))
}

func TestBounds(t *testing.T) {
	t.Parallel()
	require.NoError(t, rates.Config{}.Validate())
	require.NoError(t, rates.Config{Every: 24 * time.Hour}.Validate())
	require.ErrorContains(t, rates.Config{Every: 24*time.Hour + time.Millisecond}.Validate(), "QUEEN_LOG_RATES_MS")
}
