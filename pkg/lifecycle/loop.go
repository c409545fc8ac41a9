package lifecycle

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/queenmq/queen/pkg/logging"
)

// Back-off of a failing loop.
const (
	LoopBackoffMin = 100 * time.Millisecond
	LoopBackoffMax = 30 * time.Second
)

// Loop repeats one piece of work. An error is logged and followed by a growing
// pause; it never ends the loop.
type Loop struct {
	Name     string
	Interval time.Duration // pause after a success
	RunOnce  func(ctx context.Context) error
	Log      *slog.Logger
}

// Run works until ctx ends; it is a Component's Run.
func (l Loop) Run(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; {
		pause := jitter(l.Interval)
		if err := l.RunOnce(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil { // else it failed because it is being stopped
			pause = Backoff(failures, LoopBackoffMin, LoopBackoffMax)
			failures++
			l.Log.WarnContext(ctx, "loop failed and will try again", slog.String(logging.KeyComponent, l.Name),
				slog.Int(logging.KeyAttempt, failures), slog.Duration(logging.KeyDelay, pause), logging.Err(err))
		}
		Sleep(ctx, pause)
	}
	return nil
}

// Backoff is the pause before another attempt after the given number of earlier
// failures (from 0): doubling from low up to high, jittered.
func Backoff(failures int, low, high time.Duration) time.Duration {
	d := low
	for range failures {
		if d >= high {
			break
		}
		d *= 2
	}
	return jitter(min(d, high))
}

// jitter spreads a pause over ±10 %, so that replicas do not move in step.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - d/10 + rand.N(d/5+1)
}

// Sleep waits, and reports false when ctx ended first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
