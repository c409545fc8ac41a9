// Package clock lets code whose result depends on the time take it from outside.
// Code that merely waits uses package time.
package clock

import "time"

// Clock tells the time.
type Clock interface{ Now() time.Time }

// System is the machine's clock.
type System struct{}

// Now is the current time.
func (System) Now() time.Time { return time.Now() }
