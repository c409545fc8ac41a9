package admission

import "time"

// trains finds the flush cycle of the database in the instants at which commits
// complete. One flush of the log completes every transaction that waited for
// it, so commits arrive in trains; the distance between the starts of two trains
// is one cycle.
type trains struct {
	gap time.Duration // a longer pause starts another train

	last, start time.Time // of the train on its way

	// Since the last take.
	commits, count int
	cycles         int           // trains that had one before them
	span           time.Duration // their distances in all
}

// commit notes one completed commit.
func (t *trains) commit(now time.Time) {
	t.commits++
	if t.last.IsZero() || now.Sub(t.last) > t.gap {
		if !t.start.IsZero() {
			t.cycles++
			t.span += now.Sub(t.start)
		}
		t.start = now
		t.count++
	}
	t.last = now
}

// leastCycles is how many cycles a tick needs for their mean to say something.
const leastCycles = 2

// trainSight is what a tick saw of the trains.
type trainSight struct {
	count, commits int
	cycle          time.Duration // 0: too few to tell
}

// take returns what was seen and starts anew.
func (t *trains) take() trainSight {
	s := trainSight{count: t.count, commits: t.commits}
	if t.cycles >= leastCycles {
		s.cycle = t.span / time.Duration(t.cycles)
	}
	t.commits, t.count, t.cycles, t.span = 0, 0, 0, 0
	return s
}
