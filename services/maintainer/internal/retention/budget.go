package retention

import "time"

// budget is the time of one phase.
type budget struct {
	began   time.Time
	evictAt time.Time // when an eviction falls due; zero when none is known
}

// over tells whether the phase should yield: one that only looks soon, one that
// deletes later, unless an eviction is due.
func (b budget) over(deleting bool) bool {
	limit := LookTime
	if deleting && (b.evictAt.IsZero() || time.Now().Before(b.evictAt)) {
		limit = PhaseTime
	}
	return time.Since(b.began) >= limit
}

// pace is how many rows a step may delete. Pushes of the lane wait for a step, and
// one that takes too long is undone: so slow ones are followed by smaller ones.
type pace struct{ rows, most int }

func newPace(most int) pace { return pace{rows: most, most: most} }

func (p *pace) took(d time.Duration) {
	switch {
	case d > StepTime:
		p.rows = max(1, p.rows/2)
	case d < StepTime/4:
		p.rows = min(p.most, p.rows*2)
	}
}

func (p *pace) timedOut() { p.rows = max(1, p.rows/8) }
