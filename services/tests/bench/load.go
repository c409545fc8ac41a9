package main

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// window is the measured stretch of a load. Load runs before and after it, and
// a latency belongs to it when its message was due inside.
type window struct {
	from, to atomic.Int64 // microseconds
}

func newWindow() *window {
	w := &window{}
	w.from.Store(math.MaxInt64)
	w.to.Store(math.MaxInt64)
	return w
}

func (w *window) open(at time.Time)  { w.from.Store(at.UnixMicro()) }
func (w *window) close(at time.Time) { w.to.Store(at.UnixMicro()) }

func (w *window) holds(micros int64) bool { return micros >= w.from.Load() && micros < w.to.Load() }

// newHistogram spans 1 µs to 5 minutes with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxDuration/time.Microsecond), 3)
}

// tally counts what one side of a load has done.
type tally struct {
	requests atomic.Int64
	messages atomic.Int64
	failures atomic.Int64

	mu      sync.Mutex
	latency *hdrhistogram.Histogram // microseconds, of the window
	unsent  *hdrhistogram.Histogram // how late batches were that were never sent
	err     error                   // the first one
}

func newTally() *tally { return &tally{latency: newHistogram(), unsent: newHistogram()} }

func (t *tally) fail(err error, n int64) {
	t.failures.Add(n)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

func (t *tally) merge(own *hdrhistogram.Histogram) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latency.Merge(own)
}

// sender sends the n-th batch, due at that time, and answers its messages.
type sender func(ctx context.Context, n int, at time.Time) (messages int, err error)

// loop says how batches are sent.
type loop struct {
	workers int
	// interval between two batches of an open loop; 0 is a closed loop, in which
	// each worker sends as soon as its last batch is answered.
	interval time.Duration
	limit    int64            // batches, in a closed loop; 0: no limit
	ready    func() bool      // a closed loop pauses while this is false; may be nil
	sender   func(int) sender // of one worker
}

// afterFailure keeps workers from spinning on a broker that is away.
const (
	afterFailure = 10 * time.Millisecond
	pause        = time.Millisecond
)

// drive runs the workers until ctx ends or the limit is reached. In an open
// loop batches are due at fixed instants, and latency counts from the due time,
// so that a slow answer is not hidden by the requests it held up. Batches that
// were due but never sent count as late as the end of the load.
func drive(ctx context.Context, l loop, w *window, t *tally) {
	var wg sync.WaitGroup
	var next atomic.Int64
	began := time.Now()
	for worker := range l.workers {
		wg.Go(func() {
			own := newHistogram()
			defer t.merge(own)
			send := l.sender(worker)
			for ctx.Err() == nil && l.wait(ctx) {
				n := next.Add(1) - 1
				if l.limit > 0 && n >= l.limit {
					return
				}
				due := time.Now()
				if l.interval > 0 {
					due = began.Add(time.Duration(n) * l.interval)
					if !waitUntil(ctx, due) {
						t.late(due, w)
						return
					}
				}
				t.sendOne(ctx, send, int(n), due, w, own)
			}
		})
	}
	wg.Wait()
	for n := next.Load(); l.interval > 0; n++ {
		due := began.Add(time.Duration(n) * l.interval)
		if !due.Before(time.Now()) {
			return
		}
		t.late(due, w)
	}
}

// late notes a batch that was due in the window and was not sent any more.
func (t *tally) late(due time.Time, w *window) {
	if behind := time.Since(due); behind > 0 && w.holds(due.UnixMicro()) {
		t.mu.Lock()
		defer t.mu.Unlock()
		_ = t.unsent.RecordValue(max(behind.Microseconds(), 1))
	}
}

// wait lets a closed loop pause; false says that it is over.
func (l loop) wait(ctx context.Context) bool {
	for l.ready != nil && !l.ready() {
		if !waitUntil(ctx, time.Now().Add(pause)) {
			return false
		}
	}
	return true
}

func (t *tally) sendOne(ctx context.Context, send sender, n int, due time.Time, w *window, own *hdrhistogram.Histogram) {
	// The end of ctx stops new batches; one already sent is waited for.
	messages, err := send(context.WithoutCancel(ctx), n, due)
	if err != nil {
		t.fail(err, 1)
		waitUntil(ctx, time.Now().Add(afterFailure))
		return
	}
	t.requests.Add(1)
	t.messages.Add(int64(messages))
	if w.holds(due.UnixMicro()) {
		_ = own.RecordValue(max(time.Since(due).Microseconds(), 1))
	}
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
