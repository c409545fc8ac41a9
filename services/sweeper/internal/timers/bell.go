package timers

import (
	"sync"
	"time"
)

// farthest bounds how far away an instant is taken to be: hints come over a network.
const farthest = 24 * time.Hour

// bell ends a pause early. Hints name instants of the database's clock. The answer of a
// probe carries one too, and so tells where this process stands on it: no clock of this
// host is ever compared with it.
type bell struct {
	ring chan struct{} // holds a token when the pause is to be looked at again

	mu      sync.Mutex
	base    time.Time // the database's clock when the last probe was answered,
	local   time.Time // and this process's
	hint    time.Time // the earliest instant hinted at since, by the local clock; zero: none
	promise time.Time // when the pause ends; zero outside of one
}

func newBell() *bell { return &bell{ring: make(chan struct{}, 1)} }

// due takes a hint. Only one that is earlier than what is promised changes anything.
func (b *bell) due(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	local := time.Now()
	if !b.base.IsZero() {
		local = b.local.Add(min(max(at.Sub(b.base), -farthest), farthest))
	}
	b.wake(local)
}

// now ends the pause.
func (b *bell) now() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake(time.Now())
}

func (b *bell) wake(at time.Time) {
	if !b.hint.IsZero() && !at.Before(b.hint) {
		return
	}
	b.hint = at
	if !b.promise.IsZero() && at.Before(b.promise) {
		select {
		case b.ring <- struct{}{}:
		default:
		}
	}
}

// probing forgets what was hinted at so far: the probe that follows sees it.
func (b *bell) probing() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hint, b.promise = time.Time{}, time.Time{}
}

// probed notes the database's clock, right after its answer came in: an instant is
// taken to be a little later than it is, and never earlier.
func (b *bell) probed(database time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base, b.local = database, time.Now()
}

// until is when a pause ends that should last until wake, but for what was hinted at,
// and not before least.
func (b *bell) until(wake, least time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hint.IsZero() && b.hint.Before(wake) {
		wake = b.hint
	}
	if wake.Before(least) {
		wake = least
	}
	b.promise = wake
	return wake
}
