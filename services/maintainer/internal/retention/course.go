package retention

import (
	"bytes"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// span is a part of the order of a queue's lanes: from behind after to until.
// Zero keys are the beginning and the cutoff.
type span struct{ after, until store.LaneKey }

// course is the way through the lanes of one queue in one cycle.
type course interface {
	// next is the span to look at next, of which a page is read; false at the end.
	// It does not move.
	next() (span, bool)
	// seen says that all of a page of that span has been worked on, and how many
	// of its lanes are still there, due and held.
	seen(page store.Page, held int)
	// touched says that something was deleted in the span.
	touched()
}

// straight goes through everything that is due.
type straight struct {
	at   store.LaneKey
	done bool
}

func (s *straight) next() (span, bool) { return span{after: s.at}, !s.done }

func (s *straight) seen(page store.Page, _ int) {
	s.at = page.Last
	s.done = page.Examined < pageLanes
}

func (s *straight) touched() {}

// The stages of a heldCourse.
const (
	aged   = iota // lanes that rule 1 lets go: none of them is held
	fresh         // lanes that became due since the last cycle
	ranges        // held ranges whose time has come, the longest overdue one first
	done
)

// heldCourse goes through the lanes of a queue for the two retention rules, and
// keeps the held ranges.
type heldCourse struct {
	held    *heldLanes
	stage   int
	rest    int           // the stage after aged
	at      store.LaneKey // seen up to here, in this stage
	i       int           // the range in hand, none below 0
	holding int           // its held lanes so far
}

func newHeldCourse(held *heldLanes, q store.QueuePlan) *heldCourse {
	c := &heldCourse{held: held, rest: fresh, i: -1}
	if !consumes(q) {
		held.ranges, c.rest = nil, done
	}
	if q.All == nil {
		c.stage = c.rest
		held.rebase(store.LaneKey{})
		return c
	}
	held.rebase(lastKeyAt(*q.All))
	return c
}

// consumes tells whether rule 2 lets anything go that rule 1 does not.
func consumes(q store.QueuePlan) bool {
	return q.Completed != nil && (q.All == nil || q.Completed.After(*q.All))
}

// lastKeyAt is behind every lane whose oldest segment is of that instant.
func lastKeyAt(at time.Time) store.LaneKey { return store.LaneKey{At: at, ID: uuid.Max} }

func (c *heldCourse) next() (span, bool) {
	switch c.stage {
	case aged:
		return span{after: c.at, until: c.held.floor}, true
	case fresh:
		return span{after: later(c.at, c.held.top())}, true
	case ranges:
		if c.i < 0 {
			c.i = c.held.due(time.Now())
		}
		if c.i >= 0 {
			return span{after: later(c.at, c.held.from(c.i)), until: c.held.ranges[c.i].to}, true
		}
	}
	return span{}, false
}

func (c *heldCourse) seen(page store.Page, held int) {
	c.at = page.Last
	end := page.Examined < pageLanes
	switch c.stage {
	case aged:
		c.leave(end, c.rest)
	case fresh:
		c.held.add(page.Last, held, time.Now())
		c.leave(end, ranges)
	case ranges:
		c.holding += held
		if end {
			c.held.settle(c.i, c.holding, time.Now())
			c.i, c.holding = -1, 0
		}
		c.leave(end, ranges)
	}
}

// leave begins a stage, or the next range, once a page was the last one.
func (c *heldCourse) leave(end bool, next int) {
	if end {
		c.stage, c.at = next, store.LaneKey{}
	}
}

func (c *heldCourse) touched() {
	if c.stage == ranges && c.i >= 0 {
		c.held.ranges[c.i].delay = 0
	}
}

// before is the order of lanes: PostgreSQL, too, compares the bytes of a UUID.
func before(a, b store.LaneKey) bool {
	if !a.At.Equal(b.At) {
		return a.At.Before(b.At)
	}
	return bytes.Compare(a.ID[:], b.ID[:]) < 0
}

func later(a, b store.LaneKey) store.LaneKey {
	if before(b, a) {
		return a
	}
	return b
}
