package retention

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// lanePhase is one of the phases that go through the lanes of queues.
type lanePhase struct {
	name string
	due  func(q store.QueuePlan) bool
	way  func(q store.QueuePlan) course
	page func(ctx context.Context, q store.QueuePlan, s span) (store.Page, error)
	step func(ctx context.Context, q store.QueuePlan, lane uuid.UUID, rows int) (store.Step, error)
	// book adds a step to the parts of the phase and of the queue.
	book func(p *Phase, q *Queue, s store.Step)

	pace pace
	// last is the queue at which the phase yielded; the next cycle begins behind
	// it. Nil when it came to its end.
	last uuid.UUID
	// slow are lanes that gave trouble in the last cycle: they come last on their
	// page, so that a few locked ones cannot use up the time of all others.
	slow map[uuid.UUID]struct{}
}

// sweep is one run of a lane phase. Queues take turns, so that the backlog of one
// does not hold up the others.
type sweep struct {
	*lanePhase
	budget  budget
	out     *Phase
	trouble map[uuid.UUID]struct{} // the slow lanes of the next run
	failed  error                  // the first error that concerned one lane
}

// visit is the state of one queue in a sweep.
type visit struct {
	plan store.QueuePlan
	way  course
	part *Queue
	skip map[uuid.UUID]struct{} // lanes of the page in hand that were tried in vain
}

// run goes through the queues until all is done or the time is up. Errors that
// concern one lane end up in failed; any other one ends the run.
func (s *sweep) run(ctx context.Context, queues []store.QueuePlan, parts tally) error {
	s.trouble = map[uuid.UUID]struct{}{}
	waiting := s.visits(queues, parts)
	s.out.Queues = int64(len(waiting))
	for len(waiting) > 0 {
		v := waiting[0]
		waiting = waiting[1:]
		more, err := s.turn(ctx, v, len(waiting) > 0)
		if more {
			waiting = append(waiting, v)
			s.remember(v.skip)
		}
		if s.last = v.plan.Queue; err != nil {
			return err
		}
		if len(waiting) > 0 && s.budget.over(s.out.deleted()) {
			s.out.Unfinished = true
			s.carry()
			return nil
		}
	}
	s.last, s.slow = uuid.Nil, s.trouble
	return nil
}

// visits puts the queues in order: by id, beginning behind the last one.
func (s *sweep) visits(queues []store.QueuePlan, parts tally) []*visit {
	var out []*visit
	for _, q := range queues {
		if s.due(q) {
			out = append(out, &visit{plan: q, way: s.way(q), part: parts.of(q), skip: map[uuid.UUID]struct{}{}})
		}
	}
	slices.SortFunc(out, func(a, b *visit) int { return bytes.Compare(a.plan.Queue[:], b.plan.Queue[:]) })
	first := slices.IndexFunc(out, func(v *visit) bool { return bytes.Compare(v.plan.Queue[:], s.last[:]) > 0 })
	if first > 0 {
		out = append(out[first:], out[:first]...)
	}
	return out
}

// turn works on one queue, page by page, and reports whether there is more.
func (s *sweep) turn(ctx context.Context, v *visit, others bool) (more bool, err error) {
	until := time.Now().Add(TurnTime)
	up := func() bool { return others && !time.Now().Before(until) }
	for {
		part, ok := v.way.next()
		if !ok {
			return false, nil
		}
		page, err := s.page(ctx, v.plan, part)
		if gaveUp(err) && ctx.Err() == nil {
			s.out.TimedOut++
			return false, nil
		}
		if err != nil {
			return true, fmt.Errorf("look for lanes of queue %q: %w", v.plan.Name, err)
		}
		held, whole, err := s.lanes(ctx, v, page.Due, up)
		if err != nil || !whole {
			return true, err
		}
		v.way.seen(page, page.Examined-len(page.Due)+held)
		clear(v.skip)
		if up() || s.budget.over(s.out.deleted()) {
			_, more = v.way.next()
			return more, nil
		}
	}
}

// lanes works on the lanes of a page. It counts those from which nothing could be
// deleted; whole is false when time was up before the end. A page with lanes to
// work on always gets on by one at least.
func (s *sweep) lanes(ctx context.Context, v *visit, due []uuid.UUID, up func() bool) (held int, whole bool, err error) {
	stop := func() bool { return up() || s.budget.over(true) }
	for i, lane := range s.ordered(due) {
		if _, tried := v.skip[lane]; tried {
			held++
			continue
		}
		deleted, more, err := s.lane(ctx, v, lane, stop)
		if err != nil {
			return held, false, err
		}
		if !deleted {
			held++
			v.skip[lane] = struct{}{}
		}
		if more || i+1 < len(due) && stop() {
			return held, false, nil
		}
	}
	return held, true, nil
}

// ordered puts the slow lanes last, and leaves the others ascending by id.
func (s *sweep) ordered(due []uuid.UUID) []uuid.UUID {
	if len(s.slow) == 0 {
		return due
	}
	var late []uuid.UUID
	out := make([]uuid.UUID, 0, len(due))
	for _, lane := range due {
		if _, slow := s.slow[lane]; slow {
			late = append(late, lane)
		} else {
			out = append(out, lane)
		}
	}
	return append(out, late...)
}

// lane makes the steps of one lane until nothing is left to delete or the time is
// up, in which case there may be more.
func (s *sweep) lane(ctx context.Context, v *visit, lane uuid.UUID, stop func() bool) (deleted, more bool, err error) {
	s.out.Lanes++
	for {
		began := time.Now()
		step, err := s.step(ctx, v.plan, lane, s.pace.rows)
		if err != nil {
			return deleted, false, s.refused(ctx, v, lane, err)
		}
		s.pace.took(time.Since(began))
		s.book(s.out, v.part, step)
		if step.Deleted > 0 {
			deleted = true
			v.way.touched()
		}
		// The contract says done when nothing was deleted; nobody relies on it.
		if step.Done || step.Deleted == 0 {
			return deleted, false, nil
		}
		if stop() {
			return deleted, true, nil
		}
	}
}

// refused judges the error of a step. What concerns this lane alone is counted,
// and the lane left to the next cycle; anything else is returned.
func (s *sweep) refused(ctx context.Context, v *visit, lane uuid.UUID, err error) error {
	err = fmt.Errorf("partition %s of queue %q: %w", lane, v.plan.Name, err)
	if ctx.Err() != nil {
		return err
	}
	switch {
	case gaveUp(err):
		s.out.TimedOut++
		if store.TimedOut(err) {
			s.pace.timedOut()
		}
	case store.Classify(err) == store.Permanent && s.out.Failed < laneErrors:
		s.out.Failed++
		if s.failed == nil {
			s.failed = err
		}
	default:
		return err
	}
	v.way.touched()
	s.trouble[lane] = struct{}{}
	return nil
}

// carry keeps also those slow lanes that were not reached.
func (s *sweep) carry() {
	if len(s.slow) < slowLanes {
		maps.Copy(s.trouble, s.slow)
	}
	s.slow = s.trouble
}

// remember keeps the lanes that were tried in vain on a page that was not finished.
func (s *sweep) remember(lanes map[uuid.UUID]struct{}) {
	for lane := range lanes {
		s.trouble[lane] = struct{}{}
	}
}
