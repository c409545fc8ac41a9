package wake

import "time"

// Waiter is one registered long poll. Its methods are for the goroutine that
// registered it. The order of use is
//
//	Register, Begin, look, [Found nothing: Empty, wait for Ready or a timer, Begin, look] ..., Close
type Waiter struct {
	hub   *Hub
	gate  *gate
	class *class
	topic Topic
	ready chan struct{}

	// Guarded by the hub's lock.
	parked     bool // in its class's list; otherwise it holds a wake
	prev, next *Waiter
	// A wake was handed over and no completed look has answered it yet.
	owed bool
}

// Ready delivers a token when the waiter should look.
func (w *Waiter) Ready() <-chan struct{} { return w.ready }

// Begin is called before every look, whatever ended the wait. It parks the
// waiter again, so that an announcement during the look is not missed, and
// reports whether an announcement (not a timer) is the reason to look.
func (w *Waiter) Begin() (look Look, woken bool) {
	now := time.Now()
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if !w.parked {
		// The token is still there when a timer and a wake came together.
		select {
		case <-w.ready:
		default:
		}
		w.owed, woken = true, true
		w.class.push(w)
	}
	return Look{start: now, generation: w.class.generation}, woken
}

// Empty records that a look found nothing.
func (w *Waiter) Empty(l Look) {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.owed = false
	if l.start.After(w.class.empty.start) {
		w.class.empty = l
	}
}

// Served records that a look found work.
func (w *Waiter) Served() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.owed = false
}

// Redundant says that a waiter of the same class looked in vain within the last
// age before l, and that nothing was announced since: only time could have made
// something visible. It lets many parked waiters share their re-checks.
func (w *Waiter) Redundant(l Look, age time.Duration) bool {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	e := w.class.empty
	return e.generation == l.generation && !e.start.IsZero() && l.start.Sub(e.start) < age
}

// Close ends the registration. A wake that no completed look has answered is
// handed to the next waiter of the class, so that it is not lost with this one.
func (w *Waiter) Close() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	switch {
	case w.parked:
		w.class.remove(w)
		if w.owed {
			w.class.signal()
		}
	default: // a wake came that was never looked after
		w.class.signal()
	}
	w.gate.leave(w.topic, w.class)
}
