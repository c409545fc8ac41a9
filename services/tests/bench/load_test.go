package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func sending(fn sender) func(int) sender { return func(int) sender { return fn } }

func TestAClosedLoopSendsAsFastAsItIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w, got := newWindow(), newTally()
		w.open(time.Now())
		drive(ctx, loop{workers: 2, sender: sending(func(context.Context, int, time.Time) (int, error) {
			time.Sleep(10 * time.Millisecond)
			return 3, nil
		})}, w, got)
		// What is due at the very end may be sent or not.
		require.InDelta(t, 200, got.requests.Load(), 2)
		require.Equal(t, 3*got.requests.Load(), got.messages.Load())
		require.Equal(t, got.requests.Load(), got.latency.TotalCount())
		require.InDelta(t, 10_000, got.latency.ValueAtQuantile(99), 10)
	})
}

func TestAnOpenLoopCountsFromTheDueTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w, got := newWindow(), newTally()
		w.open(time.Now())
		// One worker needs 20 ms for what is due every 10 ms: it falls behind.
		drive(ctx, loop{workers: 1, interval: 10 * time.Millisecond, sender: sending(func(context.Context, int, time.Time) (int, error) {
			time.Sleep(20 * time.Millisecond)
			return 1, nil
		})}, w, got)
		require.InDelta(t, 50, got.requests.Load(), 1)
		require.InDelta(t, 510_000, got.latency.Max(), 11_000, "the last one was sent when it was overdue by nearly half a second")
		require.InDelta(t, 50, got.unsent.TotalCount(), 2, "and half of them not at all")
		require.InDelta(t, 500_000, got.unsent.Max(), 21_000)
	})
}

func TestOnlyTheWindowIsMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, got := newWindow(), newTally()
		time.AfterFunc(300*time.Millisecond-time.Microsecond, func() { w.open(time.Now()) })
		time.AfterFunc(500*time.Millisecond-time.Microsecond, func() { w.close(time.Now()) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		drive(ctx, loop{workers: 1, interval: 10 * time.Millisecond, sender: sending(func(context.Context, int, time.Time) (int, error) {
			return 1, nil
		})}, w, got)
		require.Equal(t, int64(20), got.latency.TotalCount())
		require.InDelta(t, 100, got.requests.Load(), 1)
	})
}

func TestALoopPausesAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		l := loop{
			workers: 4, limit: 10,
			ready: func() bool { return sent.Load() < 5 },
			sender: sending(func(context.Context, int, time.Time) (int, error) {
				sent.Add(1)
				return 1, nil
			}),
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		drive(ctx, l, newWindow(), newTally())
		require.Less(t, sent.Load(), int64(5+l.workers))
		l.ready = nil
		began := time.Now()
		got := newTally()
		drive(t.Context(), l, newWindow(), got)
		require.Equal(t, int64(10), got.requests.Load())
		require.Zero(t, time.Since(began))
	})
}

func TestFailuresAreCountedAndTheFirstIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		first, got := errors.New("first"), newTally()
		drive(ctx, loop{workers: 1, sender: sending(func(_ context.Context, n int, _ time.Time) (int, error) {
			if n == 0 {
				return 1, first
			}
			return 1, errors.New("later")
		})}, newWindow(), got)
		require.ErrorIs(t, got.err, first)
		require.InDelta(t, 100, got.failures.Load(), 1, "a failing worker does not spin")
		require.Zero(t, got.messages.Load())
	})
}
