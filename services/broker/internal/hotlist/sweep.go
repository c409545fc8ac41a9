package hotlist

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

func (l *List) sweeps(ctx context.Context) {
	if l.cfg.IdleSweep <= 0 {
		<-ctx.Done()
		return
	}
	every(ctx, l.cfg.IdleSweep, nil, func(context.Context) time.Duration {
		l.sweep()
		return 0
	})
}

// sweep forgets what nobody has touched since the last one: rings that nobody
// pops, queues with nothing in them, and the numbers of lanes that have no work.
// All of it comes back when it is needed.
func (l *List) sweep() {
	for _, q := range l.all() {
		rings := q.trim()
		if rings == 0 || !q.used.Swap(false) {
			l.drop(q.key, func(now *queue) bool { return now == q && q.deserted() })
		}
		q.collect()
	}
}

// trim drops the rings that nobody has popped for a whole interval, and returns
// how many are left.
func (q *queue) trim() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rings = slices.DeleteFunc(q.rings, func(r *ring) bool {
		if r.used.Swap(false) || r.walk.walking() || r.counts()[inflight] > 0 {
			return false
		}
		r.dropped.Store(true)
		return true
	})
	return len(q.rings)
}

// deserted says whether a queue can go: nobody has touched it since the last
// sweep, nobody is at work on it, and every slot is idle.
func (q *queue) deserted() bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if len(q.rings) == 0 {
		return true
	}
	return !q.used.Load() && !slices.ContainsFunc(q.rings, func(r *ring) bool { return r.walk.walking() || r.busy() })
}

// crowded says whether there is little room left for lanes.
func (q *queue) crowded() bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.table.used >= q.list.limits.lanes*3/4
}

// collect gives back the numbers of lanes that are idle in every ring.
func (q *queue) collect() {
	for from := int32(0); ; from += collectChunk {
		gone, more := q.collectSome(from)
		for _, g := range gone {
			q.list.atlas.remove(g.id, q.serial, g.lane)
		}
		if !more {
			return
		}
	}
}

// forgotten is a lane whose number was given back while its id was known.
type forgotten struct {
	lane int32
	id   uuid.UUID
}

// collectSome does so for a stretch of the table, under its lock.
func (q *queue) collectSome(from int32) (gone []forgotten, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.table.used <= min(collectMin, q.list.limits.lanes/2) {
		return nil, false
	}
	to := min(from+collectChunk, q.table.names.n)
	for lane := from; lane < to; lane++ {
		if q.table.name(lane) == "" || slices.ContainsFunc(q.rings, func(r *ring) bool { return !r.idle(lane) }) {
			continue
		}
		if id := q.table.id(lane); id != uuid.Nil {
			gone = append(gone, forgotten{lane, id})
		}
		q.table.remove(lane)
	}
	return gone, to < q.table.names.n
}

// idle says whether a lane has no work in a ring.
func (r *ring) idle(lane int32) bool {
	s, i := r.sub(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	return i >= s.slots.n || s.slots.at(i).state == idle
}
