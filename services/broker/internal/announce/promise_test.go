package announce_test

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/announce"
)

// timerHints counts the hints for sweepers.
type timerHints struct {
	announce.Peers
	sent atomic.Int64
	last time.Time
}

func (h *timerHints) TimerDue(at time.Time) {
	h.sent.Add(1)
	h.last = at
}

func TestOnlyNearerTimersAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &timerHints{}
		a := &announce.Announcer{Peers: h}
		// The clock of the database says something else; only the distance counts.
		schedule := func(in time.Duration) { a.TimerDue(due.Add(in), in) }
		told := func(want bool, in time.Duration) {
			t.Helper()
			before := h.sent.Load()
			schedule(in)
			require.Equal(t, want, h.sent.Load() > before, in)
			if want {
				require.Equal(t, due.Add(in), h.last)
			}
		}
		const week = 7 * 24 * time.Hour
		told(true, week)
		for range 1_000_000 {
			schedule(week)
		}
		require.EqualValues(t, 1, h.sent.Load())
		told(false, week+time.Second)
		told(true, week-time.Nanosecond)
		told(true, time.Minute)
		told(false, time.Hour)

		time.Sleep(time.Minute - time.Nanosecond)
		told(false, time.Nanosecond) // it is the very instant that was promised
		time.Sleep(time.Nanosecond)
		told(true, time.Hour) // sweepers have looked at the minute
		told(false, week)

		told(true, 0)
		told(true, 0) // a sweeper may have looked between them
		told(true, -time.Hour)
		told(true, math.MinInt64)
		told(true, math.MaxInt64)
		told(true, week)
	})
}

// Each broker tells its own: what another one has told may be lost.
func TestBrokersTellTimersOnTheirOwn(t *testing.T) {
	t.Parallel()
	h := &timerHints{}
	a, b := &announce.Announcer{Peers: h}, &announce.Announcer{Peers: h}
	a.TimerDue(due, time.Hour)
	b.TimerDue(due, time.Hour)
	b.TimerDue(due, time.Hour)
	require.EqualValues(t, 2, h.sent.Load())
}

func TestTimersAreToldOnceByMany(t *testing.T) {
	t.Parallel()
	h := &countingHints{}
	a := &announce.Announcer{Peers: h}
	a.TimerDue(due, time.Hour)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10_000 {
				a.TimerDue(due, 2*time.Hour)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, h.sent.Load())
}

type countingHints struct {
	announce.Peers
	sent atomic.Int64
}

func (h *countingHints) TimerDue(time.Time) { h.sent.Add(1) }

func TestTimersToldAlreadyCostNothing(t *testing.T) {
	a := &announce.Announcer{Peers: &countingHints{}}
	a.TimerDue(due, time.Hour)
	require.Zero(t, testing.AllocsPerRun(100, func() { a.TimerDue(due, 2*time.Hour) }))
	require.Zero(t, testing.AllocsPerRun(100, func() { a.TimerDue(due, 0) }))
}

// The price of a schedule whose timers are no news.
func BenchmarkTimerDue(b *testing.B) {
	a := &announce.Announcer{Peers: &countingHints{}}
	a.TimerDue(due, time.Hour)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a.TimerDue(due, 2*time.Hour)
		}
	})
}
