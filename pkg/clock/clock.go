package clock

import (
	"sync"
	"time"
)

// Clock tells the time.
type Clock interface{ Now() time.Time }

// System is the machine's clock.
type System struct{}

// Now is the current time.
func (System) Now() time.Time { return time.Now() }

// Fake is a clock for tests, which stands still until it is moved. It is safe for
// concurrent use; its zero value shows the zero time.
type Fake struct {
	mu  sync.Mutex
	now time.Time
}

// NewFake returns a clock that shows t.
func NewFake(t time.Time) *Fake { return &Fake{now: t} }

// Now is the time the clock shows.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Set makes the clock show t, which may be earlier: real clocks step back too.
func (f *Fake) Set(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = t
}

// Advance moves the clock by d and returns the time it then shows.
func (f *Fake) Advance(d time.Duration) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	return f.now
}
