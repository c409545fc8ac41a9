package timers

import (
	"context"
	"time"

	"github.com/queenmq/queen/pkg/worker/giveway"
)

const (
	// RestLook is after how much work a drain looks for others.
	RestLook = 20 * time.Millisecond
	// RestMemory is for how long others that were seen at work count as being so.
	RestMemory = time.Second
	// RestFactor is for how many times as long as a call the rest after it lasts meanwhile.
	RestFactor = 2
	// RestMost bounds a rest.
	RestMost = 100 * time.Millisecond
	// RestLanes is FireLanes while others are at work. A call waits for lanes that pushes
	// hold: one that has others already makes pushes of those wait as long.
	RestLanes = 1
	// RestClaims is into how many each claim is divided then: what a push meets is the
	// length of a call, more than how often one is made.
	RestClaims = 4
	// RestLate is from when on timers count as late.
	RestLate = time.Second
	// RestTime is for how long they may be so before drains give way no more: others that
	// never end would make them later and later.
	RestTime = time.Minute
)

// giving is how drains give way.
var giving = giveway.Config{Look: RestLook, Factor: RestFactor, Most: RestMost, Memory: RestMemory} //nolint:gochecknoglobals // a constant

// haste tells when drains have given way for long enough.
type haste struct {
	late time.Time // since when timers are; zero: they are not
}

// felt takes what a probe says of the first timer that is due.
func (h *haste) felt(late time.Duration) {
	switch {
	case late < RestLate:
		h.late = time.Time{}
	case h.late.IsZero():
		h.late = time.Now()
	}
}

// due tells that no more rests are to be taken.
func (h *haste) due() bool { return !h.late.IsZero() && time.Since(h.late) >= RestTime }

// turns has the calls of a drain give way to others. They share their rests: claims and
// fires in turn disturb others less than side by side.
type turns struct {
	way *giveway.Way
	ctx context.Context // of the rests

	turn  chan struct{} // holds a token while somebody has it, and what follows
	rest  *giveway.Rest
	fired bool // something
}

// turns returns those of a drain, and what ends their rests. These end where claiming
// does, with half of the lease: so what is left of it is as much as a drain that does not
// rest has.
func (s *Sweeper) turns(ctx context.Context) (*turns, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Lease/2)
	if s.haste.due() {
		cancel()
	}
	return &turns{way: s.way, ctx: ctx, turn: make(chan struct{}, 1), rest: s.way.Rest()}, cancel
}

// giving tells that the drain gives way.
func (t *turns) giving() bool { return t.ctx.Err() == nil && t.way.Taken() }

// lanes is how many lanes a call fires at most.
func (t *turns) lanes() int {
	if t.giving() {
		return RestLanes
	}
	return FireLanes
}

// claims is into how many each claim is divided.
func (t *turns) claims() int {
	if t.giving() {
		return RestClaims
	}
	return 1
}

// giveWay takes the rest that is owed. Nothing is before the first fire: a few timers
// are not made to wait.
func (t *turns) giveWay() {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	if t.fired && t.ctx.Err() == nil {
		t.rest.Take(t.ctx)
	}
}

// call makes a call. While the drain gives way, it makes one at a time.
func (t *turns) call(fires bool, do func()) (took time.Duration) {
	one := t.giving()
	if one {
		t.turn <- struct{}{}
	}
	began := time.Now()
	do()
	took = time.Since(began)
	if !one {
		t.turn <- struct{}{}
	}
	t.rest.Worked(took)
	t.fired = t.fired || fires
	<-t.turn
	return took
}
