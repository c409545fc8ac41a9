package admission

import "time"

// ticket is one request on its way: in the queue of its class, then among the
// admitted.
type ticket struct {
	class   Class
	granted chan struct{} // closed when a waiting request gets its slot
	since   time.Time     // when it got it, or while it waits: when it came

	prev, next *ticket
}

// queue is a first-in-first-out list that also lets go of its middle.
type queue struct {
	head, tail *ticket
	len        int
}

func (q *queue) push(t *ticket) {
	t.prev = q.tail
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.next = t
	}
	q.tail = t
	q.len++
}

func (q *queue) pop() *ticket {
	t := q.head
	q.remove(t)
	return t
}

func (q *queue) remove(t *ticket) {
	if t.prev == nil {
		q.head = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		q.tail = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	q.len--
}
