package hotlist

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
)

// queue is what its groups share: the table of lanes, the settings and the folded
// wakes. Its lock is taken before those of the shards.
type queue struct {
	key
	list   *List
	serial uint32 // tells the atlas this queue from others, former ones included
	used   atomic.Bool
	config atomic.Pointer[settings]
	bell   bell

	mu    sync.RWMutex
	table table
	rings []*ring
}

func newQueue(l *List, k key, serial uint32) *queue {
	q := &queue{key: k, list: l, serial: serial, table: newTable(l.seed)}
	q.config.Store(&settings{})
	q.used.Store(true)
	return q
}

func (q *queue) options() *settings { return q.config.Load() }

func (q *queue) find(group string) *ring {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.findLocked(group)
}

func (q *queue) findLocked(group string) *ring {
	for _, r := range q.rings {
		if r.group == group {
			return r
		}
	}
	return nil
}

func (q *queue) ensure(group string) *ring {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r := q.findLocked(group); r != nil {
		return r
	}
	r := newRing(q, strings.Clone(group))
	q.rings = append(q.rings, r)
	return r
}

func (q *queue) appendRings(rs []*ring) []*ring {
	q.mu.RLock()
	defer q.mu.RUnlock()
	return append(rs, q.rings...)
}

// mark marks a lane in every ring. Without any ring, or without room for the lane,
// it reports false.
func (q *queue) mark(partition string, m mark) bool {
	q.used.Store(true)
	q.mu.RLock()
	lane, ok := q.table.lookup(partition)
	if ok || len(q.rings) == 0 {
		defer q.mu.RUnlock()
		for _, r := range q.rings {
			r.mark(lane, m)
		}
		return ok && len(q.rings) > 0
	}
	q.mu.RUnlock()

	q.mu.Lock()
	defer q.mu.Unlock()
	if lane, ok = q.intern(partition); !ok {
		for _, r := range q.rings {
			r.walk.owe()
		}
		return false
	}
	for _, r := range q.rings {
		r.mark(lane, m)
	}
	return true
}

// markGroup marks a lane in the ring of one group, if it has one.
func (q *queue) markGroup(partition, group string, m mark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.findLocked(group)
	if r == nil {
		return
	}
	if lane, ok := q.intern(partition); ok {
		r.mark(lane, m)
	} else {
		r.walk.owe()
	}
}

// intern numbers a lane; false when the table is full. The lock is held.
func (q *queue) intern(partition string) (int32, bool) {
	lane, ok := q.table.lookup(partition)
	if !ok && q.table.used < q.list.limits.lanes {
		lane, ok = q.table.insert(strings.Clone(partition)), true
	}
	return lane, ok
}

// due makes every ring due for a walk.
func (q *queue) due() {
	q.used.Store(true)
	for _, r := range q.appendRings(nil) {
		r.walk.owe()
	}
	kick(q.list.floor)
}

// turned makes the ring of a group whose cursors have moved due for a walk.
func (q *queue) turned(group string) {
	q.used.Store(true)
	if r := q.find(group); r != nil {
		r.walk.turn()
		kick(q.list.floor)
	}
}

// promote acts on the end of a lease, if the lane has the id. The lock keeps the
// number with the lane.
func (q *queue) promote(lane int32, id uuid.UUID, group string) {
	q.mu.RLock()
	if q.table.id(lane) != id {
		q.mu.RUnlock()
		return
	}
	r := q.findLocked(group)
	ready := r != nil && r.promote(lane, q.list.now(), q.options())
	q.mu.RUnlock()
	if ready {
		q.list.deps.Waker.Free(q.tenant, q.queue, group)
	}
}

// lesson is the partition id of a lane.
type lesson struct {
	lane int32
	name string
	id   uuid.UUID
}

// learn notes the ids of lanes. The name tells whether the number is still theirs.
// It changes the lessons.
func (q *queue) learn(lessons []lesson) {
	if q.knows(lessons) {
		return
	}
	old := make([]uuid.UUID, len(lessons))
	q.mu.Lock()
	for i := range lessons {
		n := &lessons[i]
		if q.table.name(n.lane) != n.name || q.table.id(n.lane) == n.id {
			n.id = uuid.Nil
			continue
		}
		old[i] = q.table.id(n.lane)
		q.table.setID(n.lane, n.id)
	}
	q.mu.Unlock()
	for i, n := range lessons {
		if n.id == uuid.Nil {
			continue
		}
		if old[i] != uuid.Nil {
			q.list.atlas.remove(old[i], q.serial, n.lane)
		}
		q.list.atlas.add(n.id, q.serial, n.lane)
	}
}

func (q *queue) knows(lessons []lesson) bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	for _, n := range lessons {
		if q.table.id(n.lane) != n.id {
			return false
		}
	}
	return true
}

// drop makes every ring discard what still comes, and returns the ids by lane.
func (q *queue) drop() vector[uuid.UUID] {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.rings {
		r.dropped.Store(true)
	}
	q.rings = nil
	ids := q.table.ids
	q.table = newTable(q.table.seed)
	return ids
}

func (q *queue) dropGroup(group string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.rings = slices.DeleteFunc(q.rings, func(r *ring) bool {
		if r.group != group {
			return false
		}
		r.dropped.Store(true)
		return true
	})
}

// ring wakes a pop for a lane: at once after a pause, else with the next tick.
func (q *queue) ring(partition string) {
	switch q.bell.ring(partition, q.list.now()) {
	case atOnce:
		q.list.deps.Waker.Wake(q.tenant, q.queue, partition)
	case firstFolded:
		q.list.fold(q)
	}
}
