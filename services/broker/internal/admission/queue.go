package admission

// waiter is one request in a queue; granted is closed when it gets a slot.
type waiter struct {
	granted    chan struct{}
	prev, next *waiter
}

// queue is a first-in-first-out list that also lets go of its middle.
type queue struct {
	head, tail *waiter
	len        int
}

func (q *queue) push(w *waiter) {
	w.prev = q.tail
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.next = w
	}
	q.tail = w
	q.len++
}

func (q *queue) pop() *waiter {
	w := q.head
	q.remove(w)
	return w
}

func (q *queue) remove(w *waiter) {
	if w.prev == nil {
		q.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	q.len--
}
