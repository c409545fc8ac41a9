package retention

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/worker/giveway"
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
	// aside are lanes that gave trouble. They are tried again behind all others of
	// their queue.
	aside aside
	// lockWait says how long steps wait for their lanes.
	lockWait func(ctx context.Context, wait time.Duration) error
	// rest gives way to others; nil does not.
	rest *giveway.Rest
	// lost tells that the session is gone.
	lost func() bool
}

// sweep is one run of a lane phase. Queues take turns, so that the backlog of one
// does not hold up the others.
type sweep struct {
	*lanePhase
	budget budget
	out    *Phase
	parts  tally
	failed error // the first error that did not end the run
	doubts int   // failures in a row that may concern all lanes
	hasty  bool  // steps do not wait long for their lanes
}

// visit is the state of one queue in a sweep.
type visit struct {
	plan store.QueuePlan
	way  course
	skip map[uuid.UUID]struct{} // lanes of the page in hand that were tried in vain
	late []uuid.UUID            // lanes that were put aside, and whose time has come
}

// run goes through the queues until all is done or the time is up. Errors that
// concern one lane or one queue end up in failed; any other one ends the run.
func (s *sweep) run(ctx context.Context, queues []store.QueuePlan) error {
	defer s.calm(ctx)
	waiting := s.visits(queues)
	s.out.Queues = int64(len(waiting))
	for len(waiting) > 0 {
		v := waiting[0]
		waiting = waiting[1:]
		more, err := s.turn(ctx, v, len(waiting) > 0)
		if more {
			waiting = append(waiting, v)
		}
		if s.last = v.plan.Queue; err != nil {
			return err
		}
		if len(waiting) > 0 && s.budget.over(s.busy()) {
			s.out.Unfinished = true
			s.yield(waiting)
			return nil
		}
	}
	s.last = uuid.Nil
	return nil
}

// busy tells that the run did more than look: it deleted, or tried to.
func (s *sweep) busy() bool { return s.out.deleted() || s.out.TimedOut > 0 || s.out.Failed > 0 }

// visits puts the queues in order: by id, beginning behind the last one.
func (s *sweep) visits(queues []store.QueuePlan) []*visit {
	var out []*visit
	due := map[uuid.UUID]struct{}{}
	for _, q := range queues {
		if s.due(q) {
			due[q.Queue] = struct{}{}
			out = append(out, &visit{plan: q, way: s.way(q), skip: map[uuid.UUID]struct{}{}, late: s.aside.due(q.Queue, time.Now())})
		}
	}
	s.aside.keep(func(queue uuid.UUID) bool {
		_, ok := due[queue]
		return ok
	})
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
			return s.again(ctx, v, up)
		}
		s.parts.of(v.plan)
		page, err := s.page(ctx, v.plan, part)
		if gaveUp(err) && ctx.Err() == nil {
			s.out.TimedOut++
			return false, nil
		}
		if err != nil {
			return false, s.judge(ctx, fmt.Errorf("look for lanes of queue %q: %w", v.plan.Name, err))
		}
		held, whole, err := s.lanes(ctx, v, page.Due, up)
		if err != nil || !whole {
			return true, err
		}
		v.way.seen(page, page.Examined-len(page.Due)+held)
		clear(v.skip)
		if up() || s.budget.over(s.busy()) {
			_, more = v.way.next()
			return more || len(v.late) > 0, nil
		}
	}
}

// again tries the lanes that were put aside earlier, behind all others of their
// queue: none of these has to wait for them.
func (s *sweep) again(ctx context.Context, v *visit, up func() bool) (more bool, err error) {
	stop := func() bool { return up() || s.budget.over(true) }
	for len(v.late) > 0 {
		lane := v.late[0]
		v.late = v.late[1:]
		_, unfinished, err := s.lane(ctx, v, lane, stop)
		if err != nil {
			return true, err
		}
		if unfinished {
			v.late = append([]uuid.UUID{lane}, v.late...)
		}
		if stop() {
			break
		}
	}
	return len(v.late) > 0, nil
}

// lanes works on the lanes of a page. It counts those from which nothing could be
// deleted; whole is false when time was up before the end. A page with lanes to
// work on always gets on by one at least.
func (s *sweep) lanes(ctx context.Context, v *visit, due []uuid.UUID, up func() bool) (held int, whole bool, err error) {
	stop := func() bool { return up() || s.budget.over(true) }
	for i, lane := range due {
		if _, tried := v.skip[lane]; tried || s.aside.has(v.plan.Queue, lane) {
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

// lane makes the steps of one lane until nothing is left to delete or the time is
// up, in which case there may be more.
func (s *sweep) lane(ctx context.Context, v *visit, lane uuid.UUID, stop func() bool) (deleted, more bool, err error) {
	s.out.Lanes++
	for {
		began := time.Now()
		step, err := traced(ctx, s.name, v.plan, lane, func(ctx context.Context) (store.Step, error) {
			return s.step(ctx, v.plan, lane, s.pace.rows)
		})
		if err != nil {
			return deleted, false, s.refused(ctx, v, lane, err)
		}
		s.doubts = 0
		took := time.Since(began)
		s.pace.took(took)
		s.book(s.out, s.parts.of(v.plan), step)
		if step.Deleted > 0 {
			deleted = true
			v.way.touched()
			s.giveWay(ctx, took)
		}
		// The contract says done when nothing was deleted; nobody relies on it.
		if step.Done || step.Deleted == 0 {
			s.aside.drop(v.plan.Queue, lane)
			return deleted, false, nil
		}
		if stop() {
			return deleted, true, nil
		}
	}
}

// giveWay rests after a step that deleted, where the phase has the time.
func (s *sweep) giveWay(ctx context.Context, took time.Duration) {
	if s.rest != nil {
		s.rest.Worked(took)
		s.rest.Take(ctx)
	}
}

// refused deals with the error of a step. Where the other lanes may fare better it
// is counted, and the lane put aside; otherwise it is returned.
func (s *sweep) refused(ctx context.Context, v *visit, lane uuid.UUID, err error) error {
	err = fmt.Errorf("partition %s of queue %q: %w", lane, v.plan.Name, err)
	if gaveUp(err) && ctx.Err() == nil {
		s.out.TimedOut++
		if store.TimedOut(err) {
			s.pace.timedOut()
		} else {
			s.hurry(ctx)
		}
	} else if err := s.judge(ctx, err); err != nil {
		return err
	}
	s.aside.put(v.plan.Queue, lane, time.Now())
	return nil
}

// judge counts an error of one lane or of one queue. It returns one that ends the
// run: without the session nothing can be done, and errors in a row that may come
// from the database as a whole are not worth a statement for each lane.
func (s *sweep) judge(ctx context.Context, err error) error {
	if ctx.Err() != nil || s.lost() {
		return err
	}
	if store.Classify(err) != store.Permanent {
		if s.doubts++; s.doubts >= laneErrors {
			return err
		}
	}
	s.out.Failed++
	if s.failed == nil {
		s.failed = err
	}
	return nil
}

// hurry has the steps that follow wait less for their lanes, so that many locked
// ones do not use up the time of the others. Where it cannot be set they wait.
func (s *sweep) hurry(ctx context.Context) {
	if !s.hasty {
		s.hasty = s.lockWait(ctx, HastyWait) == nil
	}
}

// calm undoes hurry; so does the lock of the next cycle.
func (s *sweep) calm(ctx context.Context) {
	if s.hasty && ctx.Err() == nil && !s.lost() {
		s.hasty = s.lockWait(ctx, store.StepLockWait) != nil
	}
}

// yield puts aside what was tried in vain on pages that were not finished: the next
// run begins those pages anew.
func (s *sweep) yield(waiting []*visit) {
	for _, v := range waiting {
		for lane := range v.skip {
			s.aside.put(v.plan.Queue, lane, time.Now())
		}
	}
}
