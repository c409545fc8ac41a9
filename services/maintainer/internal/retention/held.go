package retention

import (
	"slices"
	"time"

	"github.com/queenmq/queen/pkg/store"
)

// heldRange is a part of the order of a queue's lanes in which some were due and
// held when it was last looked at. It begins where the range before it ends.
type heldRange struct {
	to    store.LaneKey
	lanes int // held ones; at most about pageLanes
	delay time.Duration
	next  time.Time // to look at it again
}

// heldLanes are the held ranges of one queue. There is no gap between them: a
// lane whose watermark was repaired lands in one of them, or above them all, and
// is found either way.
type heldLanes struct {
	floor  store.LaneKey // where the first range begins
	ranges []heldRange
}

// rebase moves the floor. What lies below it is looked at in every cycle anyway.
func (h *heldLanes) rebase(floor store.LaneKey) {
	h.floor = floor
	below := slices.IndexFunc(h.ranges, func(r heldRange) bool { return before(floor, r.to) })
	if below < 0 {
		below = len(h.ranges)
	}
	h.ranges = slices.Delete(h.ranges, 0, below)
}

// top is where the fresh lanes begin.
func (h *heldLanes) top() store.LaneKey { return h.from(len(h.ranges)) }

func (h *heldLanes) from(i int) store.LaneKey {
	if i == 0 {
		return h.floor
	}
	return h.ranges[i-1].to
}

// due is the range whose time came first, below 0 when none has come. Where there is
// no time for all, none is left out for ever.
func (h *heldLanes) due(now time.Time) int {
	first := -1
	for i := range h.ranges {
		if next := h.ranges[i].next; !next.After(now) && (first < 0 || next.Before(h.ranges[first].next)) {
			first = i
		}
	}
	return first
}

// add takes in a range above all others.
func (h *heldLanes) add(to store.LaneKey, lanes int, now time.Time) {
	if lanes == 0 {
		return
	}
	h.ranges = append(h.ranges, heldRange{to: to, lanes: lanes, delay: HeldMin, next: now.Add(HeldMin)})
}

// settle says what was found in a range. An empty one goes to its neighbour above.
func (h *heldLanes) settle(i, lanes int, now time.Time) {
	if lanes == 0 {
		h.ranges = slices.Delete(h.ranges, i, i+1)
		return
	}
	r := &h.ranges[i]
	r.lanes = lanes
	r.delay = min(max(2*r.delay, HeldMin), HeldMax)
	r.next = now.Add(r.delay)
	h.merge(i)
}

// merge joins a range with the one below it, where both are small and wait
// equally long.
func (h *heldLanes) merge(i int) {
	if i == 0 {
		return
	}
	below, r := &h.ranges[i-1], h.ranges[i]
	if below.delay != r.delay || below.lanes+r.lanes > pageLanes {
		return
	}
	below.to = r.to
	below.lanes += r.lanes
	if r.next.Before(below.next) {
		below.next = r.next
	}
	h.ranges = slices.Delete(h.ranges, i, i+1)
}

// lanes is how many lanes are held.
func (h *heldLanes) lanes() (n int64) {
	for i := range h.ranges {
		n += int64(h.ranges[i].lanes)
	}
	return n
}
