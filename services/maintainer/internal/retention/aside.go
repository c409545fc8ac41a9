package retention

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// aside are the lanes of one phase that could not be worked on: somebody else had
// their lock, or their step failed. Meeting them again in every cycle would use up
// the time of the lanes behind them.
type aside struct {
	least, most time.Duration // for how long one is left alone, doubling
	queues      map[uuid.UUID]map[uuid.UUID]asideLane
	n           int
}

type asideLane struct {
	delay time.Duration
	next  time.Time // to try it again
}

func newAside(least, most time.Duration) aside {
	return aside{least: least, most: most, queues: map[uuid.UUID]map[uuid.UUID]asideLane{}}
}

// put leaves a lane alone from now on, for longer than the last time. One for which
// there is no room will be met again in the next cycle.
func (a *aside) put(queue, lane uuid.UUID, now time.Time) {
	l, known := a.queues[queue][lane]
	if !known {
		if a.n >= AsideLanes {
			return
		}
		a.n++
	}
	if a.queues[queue] == nil {
		a.queues[queue] = map[uuid.UUID]asideLane{}
	}
	l.delay = min(max(2*l.delay, a.least), a.most)
	l.next = now.Add(l.delay)
	a.queues[queue][lane] = l
}

func (a *aside) has(queue, lane uuid.UUID) bool {
	_, ok := a.queues[queue][lane]
	return ok
}

func (a *aside) drop(queue, lane uuid.UUID) {
	if !a.has(queue, lane) {
		return
	}
	a.n--
	if delete(a.queues[queue], lane); len(a.queues[queue]) == 0 {
		delete(a.queues, queue)
	}
}

// due are the lanes of a queue whose time has come, the longest overdue one first.
func (a *aside) due(queue uuid.UUID, now time.Time) (out []uuid.UUID) {
	lanes := a.queues[queue]
	for lane := range lanes {
		if !lanes[lane].next.After(now) {
			out = append(out, lane)
		}
	}
	slices.SortFunc(out, func(x, y uuid.UUID) int {
		if c := lanes[x].next.Compare(lanes[y].next); c != 0 {
			return c
		}
		return slices.Compare(x[:], y[:])
	})
	return out
}

// keep forgets the lanes of all queues but those.
func (a *aside) keep(due func(queue uuid.UUID) bool) {
	for queue, lanes := range a.queues {
		if !due(queue) {
			a.n -= len(lanes)
			delete(a.queues, queue)
		}
	}
}
