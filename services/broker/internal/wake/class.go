package wake

// Reason says why a waiter is to look. Reasons add up.
type Reason uint8

const (
	// Lane says that one lane of the topic was announced.
	Lane Reason = 1 << iota
	// Wide says that something was announced whose lane is not known: more than
	// one waiter may find work. Whoever does wakes the next.
	Wide
	// Found says that a re-check of the database found something.
	Found
)

// class is a set of interchangeable waiters.
type class struct {
	users      int
	head, tail *Waiter // the idle ones, longest waiting first
	// missed counts the wakes that came while no waiter was idle. As many of the
	// busy ones look again before they rest.
	missed int
	why    Reason // of the missed ones
}

// signal wakes the waiter that has been idle longest. The hub's lock is held, so
// Woken must not block.
func (c *class) signal(r Reason) {
	w := c.head
	if w == nil {
		c.missed = min(c.missed+1, c.users)
		c.why |= r
		return
	}
	c.remove(w)
	w.idle, w.reason = false, r
	w.owner.Woken()
}

// take hands a missed wake to a waiter that was about to rest.
func (c *class) take() Reason {
	if c.missed == 0 {
		return 0
	}
	r := c.why
	if c.missed--; c.missed == 0 {
		c.why = 0
	}
	return r
}

// dismiss wakes all that are idle.
func (c *class) dismiss() {
	for c.head != nil {
		c.signal(Wide)
	}
}

// rouse wakes all that are idle, and has all others look again.
func (c *class) rouse() {
	c.dismiss()
	c.missed, c.why = c.users, Wide
}

func (c *class) push(w *Waiter) {
	w.idle, w.prev, w.next = true, c.tail, nil
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
	w.prev, w.next = nil, nil
}
