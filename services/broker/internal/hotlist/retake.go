package hotlist

import "github.com/google/uuid"

// Retake checks out the lane whose lease is about to end, for a claim in the very
// transaction that ends it. There is none unless the lane waits here for that lease
// and is known to have batch messages, or has kept a pop from taking everything. A
// verdict Leased takes it back; what follows is up to Promote.
func (l *List) Retake(partition uuid.UUID, group string, batch int) *Checkout {
	if l == nil {
		return nil
	}
	var few [4]spot
	for _, p := range l.atlas.find(partition, few[:0]) {
		l.mu.RLock()
		q := l.serial[p.queue]
		l.mu.RUnlock()
		if q == nil {
			continue
		}
		if c := q.retake(p.lane, partition, group, batch); c != nil {
			return c
		}
	}
	return nil
}

// retake is Retake, if the lane has the id.
func (q *queue) retake(lane int32, id uuid.UUID, group string, batch int) *Checkout {
	q.mu.RLock()
	defer q.mu.RUnlock()
	r := q.findLocked(group)
	if r == nil || q.table.id(lane) != id || q.options().defers() {
		return nil
	}
	c := &Checkout{ring: r, names: []string{q.table.name(lane)}, taken: q.list.buffers.Get().(*[]taken)}
	if !r.retake(c, lane, batch) {
		c.settle()
		return nil
	}
	return c
}

func (r *ring) retake(c *Checkout, lane int32, batch int) bool {
	s, i := r.sub(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.slot(i)
	worth := !x.is(emptied) || x.is(fresh) && int64(x.marks) >= int64(batch)
	if x.state != wheel || !x.is(leased) || !worth {
		return false
	}
	s.checkOut(c, i, r.queue.list.now(), r.queue.options())
	return true
}
