package hotlist

import "sync"

// chime is what a bell wants done.
type chime int

const (
	folded      chime = iota // the next tick does it
	firstFolded              // likewise, and it has to be told
	atOnce
)

// bell folds the wakes of one queue: the first after a pause is given at once,
// those within a tick of one share the next.
type bell struct {
	mu     sync.Mutex
	last   int64
	lanes  []string
	many   bool // more lanes than are remembered
	queued bool
}

func (b *bell) ring(lane string, now int64) chime {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.queued && (b.last == 0 || now-b.last >= int64(WakeTick)) {
		b.last = now
		return atOnce
	}
	switch n := len(b.lanes); {
	case n > 0 && b.lanes[n-1] == lane: // the hub folds what is left of these
	case n == foldMax:
		b.many = true
	default:
		b.lanes = append(b.lanes, lane)
	}
	if b.queued {
		return folded
	}
	b.queued = true
	return firstFolded
}

// take returns what was folded, in a slice that is the caller's.
func (b *bell) take(now int64) (lanes []string, many bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lanes, many = b.lanes, b.many
	b.lanes, b.many, b.queued, b.last = nil, false, false, now
	return lanes, many
}

// fold has the pulse give the wakes of a queue.
func (l *List) fold(q *queue) {
	l.soon.Lock()
	l.dirty = append(l.dirty, q)
	l.soon.Unlock()
	l.hasten(l.now() + int64(WakeTick))
}

// flush gives the folded wakes: one round for every queue.
func (l *List) flush(now int64) {
	l.soon.Lock()
	dirty := l.dirty
	l.dirty = nil
	l.soon.Unlock()
	for _, q := range dirty {
		lanes, many := q.bell.take(now)
		if many {
			l.deps.Waker.Wake(q.tenant, q.queue, "")
			continue
		}
		for _, lane := range lanes {
			l.deps.Waker.Wake(q.tenant, q.queue, lane)
		}
	}
}
