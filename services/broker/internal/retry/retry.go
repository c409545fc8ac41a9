package retry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/queenmq/queen/pkg/store"
)

// Bounds of the pause between two attempts.
const (
	FirstPause = 5 * time.Millisecond
	LastPause  = 500 * time.Millisecond
)

// Definite says that a failed call changed nothing and may succeed when
// repeated: its transaction was aborted, or it never started.
func Definite(err error) bool {
	switch store.Classify(err) {
	case store.RetryLater:
		return true
	case store.Transient:
		return !store.Ambiguous(err)
	default:
		return false
	}
}

// Do calls op until it succeeds, fails in a way that repeating cannot mend, or
// the deadline passes; it returns the last error. No attempt starts after the
// deadline; one that has started is bounded by the statement deadline.
func Do(ctx context.Context, deadline time.Time, op func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		err := op(ctx)
		if err == nil || !Definite(err) || !Pause(ctx, attempt, deadline) {
			return err
		}
	}
}

// Read is Do for a call that changes nothing: a lost answer is no reason to stop.
func Read(ctx context.Context, deadline time.Time, op func(context.Context) error) error {
	for attempt := 0; ; attempt++ {
		err := op(ctx)
		if err == nil || store.Classify(err) == store.Permanent || !Pause(ctx, attempt, deadline) {
			return err
		}
	}
}

// Pause waits before the attempt after attempt (counted from 0), with jitter so
// that transactions that collided do not collide again. It reports false, without
// waiting, when the pause would outlast the deadline, and when ctx ends.
func Pause(ctx context.Context, attempt int, deadline time.Time) bool {
	d := pause(attempt)
	if time.Until(deadline) <= d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause doubles from FirstPause to LastPause and takes a random part of the
// upper half of it.
func pause(attempt int) time.Duration {
	d := LastPause
	if attempt < 7 { // 5 ms << 7 is beyond LastPause
		d = min(FirstPause<<attempt, LastPause)
	}
	return d/2 + rand.N(d/2)
}
