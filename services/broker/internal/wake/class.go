package wake

import "time"

// class is a set of interchangeable waiters: the parked ones in order of
// arrival, and what the last fruitless look of any of them proved.
type class struct {
	users      int
	head, tail *Waiter
	generation uint64 // announcements so far
	empty      Look   // last look that found nothing
}

// Look identifies one look for work, by when and after which announcement it
// was begun.
type Look struct {
	start      time.Time
	generation uint64
}

// signal wakes the waiter that waited longest.
func (c *class) signal() {
	c.generation++
	if w := c.head; w != nil {
		c.remove(w)
		w.ready <- struct{}{} // never blocks: a parked waiter holds no token
	}
}

func (c *class) signalAll() {
	c.generation++
	for c.head != nil {
		c.signal()
	}
}

func (c *class) push(w *Waiter) {
	w.parked, w.prev, w.next = true, c.tail, nil
	if c.tail == nil {
		c.head = w
	} else {
		c.tail.next = w
	}
	c.tail = w
}

func (c *class) remove(w *Waiter) {
	if w.prev == nil {
		c.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		c.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.parked, w.prev, w.next = false, nil, nil
}
