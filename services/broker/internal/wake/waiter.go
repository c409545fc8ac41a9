package wake

// Sleeper is what waits. Woken is called, from any goroutine, for each wake while it
// is idle; it must not block.
type Sleeper interface{ Woken() }

// Func is a Sleeper that is nothing but its Woken.
type Func func()

// Woken calls f.
func (f Func) Woken() { f() }

// Waiter is one registered long poll. One goroutine at a time uses it:
//
//	Register, look, [nothing: Rest, wait for Woken, Begin, look] ..., Close
type Waiter struct {
	hub   *Hub
	gate  *gate
	class *class
	topic Topic
	owner Sleeper

	// Guarded by the hub's lock.
	idle       bool // in its class's list
	prev, next *Waiter
	reason     Reason // of a wake that no completed look has answered yet
}

// Begin is called before a look that a wake asked for, and says why it did.
func (w *Waiter) Begin() Reason {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	return w.reason
}

// Rest says that a look found nothing. It reports true when there is a reason to
// look again at once: an announcement came meanwhile, or the hub was closed.
// Otherwise the waiter is idle, and Woken may already be running.
func (w *Waiter) Rest() (again bool) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.reason = w.class.take()
	if w.reason != 0 || w.hub.closed {
		return true
	}
	w.class.push(w)
	return false
}

// Served says that a look found work. After a wake that named no lane there may
// be more of it.
func (w *Waiter) Served() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.reason&Wide != 0 {
		w.class.signal(Wide)
	}
	w.reason = 0
}

// Pass wakes another waiter of the class: there is more than this one will take.
func (w *Waiter) Pass() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.class.signal(Lane)
}

// Close ends the registration. A wake that no completed look has answered is
// handed to the next waiter of the class, so that it is not lost with this one.
func (w *Waiter) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.idle {
		w.class.remove(w)
		w.idle = false
	} else if w.reason != 0 {
		w.class.signal(w.reason)
	}
	w.gate.leave(w.topic, w.class)
}
