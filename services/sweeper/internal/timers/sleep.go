package timers

import "time"

// rest is what a cycle leaves behind, as far as the pause after it depends on it.
type rest struct {
	// work says that timers were taken, and that there may be more, or that nobody
	// knows because the database did not answer.
	work bool
	// missed says that timers were due and the claim took none: somebody else is at
	// them. The jitter is drawn for it beforehand.
	missed bool
	jitter time.Duration
	// next is how far away the next timer is; nil when there is none.
	next *time.Duration
	// off says that the fire is switched off: what is due is none of the pause's business.
	off bool
	// pressure lengthens the pause, doubling it so many times.
	pressure int
}

// The bands of the pause, as metrics name them.
const (
	bandWork   = "work"
	bandMissed = "empty_claim"
	bandNext   = "next"
	bandIdle   = "idle"
)

func (r rest) band() string {
	switch {
	case r.work:
		return bandWork
	case r.missed:
		return bandMissed
	case r.next != nil:
		return bandNext
	}
	return bandIdle
}

// empty tells that there are no timers at all.
func (r rest) empty() bool { return r.band() == bandIdle && !r.off }

// sleep is the pause after a cycle, MaxSleep at most in any band.
func (c *Config) sleep(r rest) time.Duration {
	switch r.band() {
	case bandWork:
		return min(c.MinSleep<<r.pressure, c.MaxSleep)
	case bandMissed:
		return min(max(r.jitter<<r.pressure, c.EmptyClaimMin), c.EmptyClaimMax<<r.pressure, c.MaxSleep)
	case bandNext:
		return min(max(*r.next, c.MinSleep<<r.pressure), c.MaxSleep)
	}
	return c.MaxSleep
}

// least is how soon a hint may end the pause: hints, which anybody may repeat, must not
// make a spin of the loop.
func (c *Config) least(r rest) time.Duration {
	if r.missed {
		return min(c.EmptyClaimMin, c.sleep(r))
	}
	return min(c.MinSleep<<r.pressure, c.MaxSleep)
}
