package timers

import "time"

// Report is what a cycle, or a run of several, has done.
type Report struct {
	Began   time.Time
	Elapsed time.Duration

	// What the first probe said.
	Due       int
	DueCapped bool          // more may have been due
	Late      time.Duration // the first of them

	FireOff bool // an operator has switched the fire off
	// Timers, and the segments that were made of them.
	Claimed, Fired, Stale, Failed, DeadLettered int
	Segments                                    int

	// What the prune did, and left.
	Pruned         int
	Unpruned       int
	UnprunedCapped bool
	ExpiryLag      time.Duration
	// Tenants is how many tenants use something; Sampled tells that it was estimated.
	Tenants int
	Sampled bool
}

// add adds what a drain has done.
func (r *Report) add(d Report) {
	r.Claimed += d.Claimed
	r.Fired += d.Fired
	r.Stale += d.Stale
	r.Failed += d.Failed
	r.DeadLettered += d.DeadLettered
	r.Segments += d.Segments
}
