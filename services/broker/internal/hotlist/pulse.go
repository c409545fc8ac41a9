package hotlist

import (
	"context"
	"math"
	"time"
)

const never = math.MaxInt64

// arm has the pulse look after the wheel of a ring. A shard's lock may be held.
func (r *ring) arm(due int64) {
	l := r.queue.list
	if !r.armed.Swap(true) {
		l.soon.Lock()
		l.armed = append(l.armed, r)
		l.soon.Unlock()
	}
	l.hasten(l.beatFor(due))
}

// beatFor says when to look for a lane that is due: soon for one that is due soon,
// else together with others in steps of WheelTick.
func (l *List) beatFor(due int64) int64 {
	if now := l.now(); due-now < 2*int64(WheelTick) {
		return max(due, now+int64(WakeTick))
	}
	return due - due%int64(WheelTick) + int64(WheelTick)
}

// hasten makes the pulse beat at a time at the latest.
func (l *List) hasten(at int64) {
	for {
		p := l.planned.Load()
		if p != 0 && p <= at {
			return
		}
		if l.planned.CompareAndSwap(p, at) {
			kick(l.pulse)
			return
		}
	}
}

// beat gives the folded wakes and turns the wheels, and plans the next beat.
func (l *List) beat() {
	l.planned.Store(0)
	now := l.now()
	l.flush(now)
	if next := l.turnWheels(now); next != never {
		l.hasten(l.beatFor(next))
	}
}

// turnWheels wakes for what is due on any wheel and returns when the next is.
func (l *List) turnWheels(now int64) (next int64) {
	l.soon.Lock()
	rings := l.armed
	l.armed = nil
	l.soon.Unlock()
	next = never
	keep := rings[:0]
	var lanes [wakeMax]int32
	for _, r := range rings {
		if r.dropped.Load() {
			continue
		}
		due, woken := r.turnWheel(now, lanes[:0])
		r.queue.wakeAll(woken)
		if due == never {
			r.armed.Store(false)
			// Something may have been parked meanwhile that saw the ring armed.
			if r.counts()[wheel] == 0 || r.armed.Swap(true) {
				continue
			}
			due = now
		}
		next = min(next, due)
		keep = append(keep, r)
	}
	l.soon.Lock()
	l.armed = append(keep, l.armed...)
	l.soon.Unlock()
	return next
}

// wakeAll wakes one pop for each of some lanes.
func (q *queue) wakeAll(lanes []int32) {
	if len(lanes) == 0 {
		return
	}
	names := make([]string, 0, len(lanes))
	q.mu.RLock()
	for _, lane := range lanes {
		if name := q.table.name(lane); name != "" {
			names = append(names, name)
		}
	}
	q.mu.RUnlock()
	for _, name := range names {
		q.list.deps.Waker.Wake(q.tenant, q.queue, name)
	}
}

// pulses beats when something is planned. It costs nothing while nothing is.
func (l *List) pulses(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if p := l.planned.Load(); p != 0 {
			wait = time.Duration(max(0, p-l.now()))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-l.pulse:
		case <-timer.C:
			l.beat()
		}
	}
}
