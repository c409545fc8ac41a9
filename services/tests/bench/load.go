package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// result is what one block of load did.
type result struct {
	requests int64
	messages int64
	failures int64
	elapsed  time.Duration
	latency  *hdrhistogram.Histogram // microseconds
}

// sender sends one batch; at is the time it was due.
type sender func(ctx context.Context, worker, n int, at time.Time) error

// newHistogram spans 1 µs to 5 minutes with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxDuration/time.Microsecond), 3)
}

// drive runs the workers of one block. In a closed loop each worker sends as
// soon as its last batch is answered. In an open loop batches are due at fixed
// instants, and latency counts from the due time, so that a slow answer is not
// hidden by the requests it held up.
func drive(ctx context.Context, o options, d time.Duration, send sender) result {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		next     atomic.Int64
		total    = result{latency: newHistogram()}
		began    = time.Now()
		interval = time.Duration(0)
	)
	if o.Rate > 0 {
		interval = time.Duration(float64(time.Second) * float64(o.Batch) / float64(o.Rate))
	}
	for worker := range o.Pushers {
		wg.Go(func() {
			own := work(ctx, o, worker, &next, began, interval, send)
			mu.Lock()
			defer mu.Unlock()
			total.requests += own.requests
			total.messages += own.messages
			total.failures += own.failures
			total.latency.Merge(own.latency)
		})
	}
	wg.Wait()
	total.elapsed = time.Since(began)
	return total
}

func work(ctx context.Context, o options, worker int, next *atomic.Int64, began time.Time,
	interval time.Duration, send sender,
) result {
	own := result{latency: newHistogram()}
	for ctx.Err() == nil {
		n := int(next.Add(1) - 1)
		due := time.Now()
		if interval > 0 {
			due = began.Add(time.Duration(n) * interval)
			if !waitUntil(ctx, due) {
				break
			}
		}
		// The deadline stops new batches; one already sent is waited for.
		if err := send(context.WithoutCancel(ctx), worker, n, due); err != nil {
			own.failures++
			continue
		}
		own.requests++
		own.messages += int64(o.Batch)
		_ = own.latency.RecordValue(time.Since(due).Microseconds())
	}
	return own
}

func waitUntil(ctx context.Context, at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
