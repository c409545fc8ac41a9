package hotlist

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// settings is what a queue's configuration means here. It is replaced, never
// changed.
type settings struct {
	window, delay int64 // nanoseconds
	read          int64 // when it was read, 0: not at all or not trusted
	since         int64 // when the deferral came to be what it is
}

// defers says whether lanes may hold messages that are not to be seen yet.
func (o *settings) defers() bool { return o.window > 0 || o.delay > 0 }

// windowed says whether the ring applies the window. Under a delay SQL does.
func (o *settings) windowed() bool { return o.window > 0 && o.delay == 0 }

// trusted says whether SQL may be told that the window has been applied.
func (o *settings) trusted(now int64) bool {
	return o.read != 0 && now-o.read < 3*int64(SettingsAgeDefault)
}

// clear is when a lane marked last at a time hides nothing any more.
func (o *settings) clear(last int64) int64 {
	return max(last, o.since) + max(o.window, o.delay) + int64(ambiguity)
}

// distrust has the settings read again. Until then what waits goes on waiting, but
// SQL applies the window.
func (q *queue) distrust() {
	o := *q.options()
	o.read = 0
	q.config.Store(&o)
}

// apply takes over settings in the place of others. When the deferral is another
// one, what waits for the old one is looked at.
func (q *queue) apply(was, o *settings) {
	if !q.config.CompareAndSwap(was, o) {
		return // changed while it was being read; it is due still
	}
	if was.window == o.window && was.delay == o.delay {
		return
	}
	for _, r := range q.appendRings(nil) {
		for i := range r.subs {
			s := &r.subs[i]
			s.mu.Lock()
			s.release(o.since)
			if !o.defers() {
				s.seen = vector[seen]{}
			}
			s.mu.Unlock()
		}
	}
	q.list.deps.Waker.Wake(q.tenant, q.queue, "")
}

// refresh reads the settings of a queue if they are old.
func (q *queue) refresh(ctx context.Context) error {
	l, was := q.list, q.options()
	now := l.now()
	if was.read != 0 && now-was.read < int64(l.cfg.SettingsAge) {
		return nil
	}
	read, found, err := l.deps.Store.QueueSettings(ctx, q.tenant, q.queue)
	if err != nil {
		return fmt.Errorf("read queue settings: %w", err)
	}
	o := &settings{read: now, since: was.since}
	if found {
		o.window = int64(time.Duration(read.WindowBuffer) * time.Second)
		o.delay = int64(time.Duration(read.DelayedProcessing) * time.Second)
	}
	if o.window != was.window || o.delay != was.delay {
		o.since = now
	}
	q.apply(was, o)
	return nil
}

// refreshAll reads what is due of the queues that somebody pops.
func (l *List) refreshAll(ctx context.Context) error {
	var problems []error
	now := l.now()
	for _, q := range l.all() {
		for _, r := range q.appendRings(nil) {
			if r.attended(now) {
				if err := q.refresh(ctx); err != nil {
					problems = append(problems, err)
				}
				break
			}
		}
		if ctx.Err() != nil || len(problems) > 2 {
			break // the database is not well; the next round goes on
		}
	}
	return errors.Join(problems...)
}
