package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// cycle is one cycle, or one turn of the eviction, while it goes on.
type cycle struct {
	*leader
	plan   store.Plan
	report Report
	parts  tally
	failed []error // what went wrong with single lanes
}

// phaseFunc is the work of one phase.
type phaseFunc func(ctx context.Context, out *Phase, b budget) error

// cycle makes one cycle. The report tells what was done also beside an error.
func (l *leader) cycle(ctx context.Context) (Report, error) {
	report, err := l.work(ctx, "retention cycle", (*cycle).all)
	l.metrics.cycle(ctx, report, outcome(report, err))
	return report, err
}

// evict makes one turn of the eviction alone.
func (l *leader) evict(ctx context.Context) (Report, error) {
	l.turned = time.Now()
	report, err := l.work(ctx, "retention eviction turn", (*cycle).evictions)
	l.metrics.turn(ctx)
	return report, err
}

func (l *leader) work(ctx context.Context, name string, do func(*cycle, context.Context) error) (Report, error) {
	ctx, span := l.tracer.Start(ctx, name)
	defer span.End()
	c := &cycle{leader: l, report: Report{Began: time.Now()}, parts: tally{}}
	err := l.lead(ctx, func(ctx context.Context) error { return do(c, ctx) })
	if err != nil {
		l.evictAt = time.Time{} // the next cycle will see
	}
	err = errors.Join(append(c.failed, err)...)
	c.report.Elapsed = time.Since(c.report.Began)
	c.report.Queues = c.parts.sorted()
	if err != nil && !errors.Is(err, ErrNotLeader) {
		span.SetStatus(codes.Error, err.Error())
	}
	return c.report, err
}

// all runs the phases in their order. A phase whose time is up leaves the rest to
// the next cycle; an error that does not concern a single lane ends the cycle.
func (c *cycle) all(ctx context.Context) error {
	if err := c.makePlan(ctx); err != nil {
		return err
	}
	if err := c.lookAhead(ctx); err != nil {
		return err
	}
	for _, p := range []struct {
		name string
		run  phaseFunc
	}{
		{PhaseRetention, c.sweepRetention},
		{PhaseTxns, c.sweep(&c.txns)},
		{PhaseEviction, c.sweepEvictions},
		{PhaseCleanup, c.cleanUp},
		{PhaseMetrics, c.purgeMetrics},
		{PhaseWalk, c.walk},
	} {
		if err := c.phase(ctx, p.name, p.run); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func (c *cycle) evictions(ctx context.Context) error {
	if err := c.makePlan(ctx); err != nil {
		return err
	}
	if err := c.phase(ctx, PhaseEviction, c.sweepEvictions); err != nil {
		return fmt.Errorf("%s: %w", PhaseEviction, err)
	}
	return nil
}

func (c *cycle) makePlan(ctx context.Context) (err error) {
	if c.plan, err = c.session.Plan(ctx); err != nil {
		return fmt.Errorf("make the plan: %w", err)
	}
	c.metrics.plan(c.plan)
	return nil
}

// phase runs one phase and reports on it.
func (c *cycle) phase(ctx context.Context, name string, run phaseFunc) error {
	ctx, span := c.tracer.Start(ctx, "retention "+name)
	defer span.End()
	out := Phase{Name: name}
	began := time.Now()
	err := run(ctx, &out, budget{began: began, evictAt: c.evictAt})
	out.Elapsed = time.Since(began)
	c.report.Phases = append(c.report.Phases, out)
	c.metrics.phase(ctx, out)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// sweep makes a phase of one that goes through lanes.
func (c *cycle) sweep(lanes *lanePhase) phaseFunc {
	return func(ctx context.Context, out *Phase, b budget) error {
		s := &sweep{lanePhase: lanes, budget: b, out: out}
		err := s.run(ctx, c.plan.Queues, c.parts)
		if s.failed != nil {
			c.failed = append(c.failed, s.failed)
		}
		return err
	}
}

func (c *cycle) sweepRetention(ctx context.Context, out *Phase, b budget) error {
	c.forget(c.plan)
	err := c.sweep(&c.retention)(ctx, out, b)
	out.Held = c.heldLanes()
	for id, h := range c.held {
		if part, ok := c.parts[id]; ok {
			part.Held = h.lanes()
		}
	}
	c.metrics.holds(out.Held)
	return err
}

// sweepEvictions is never cut short for an eviction. Those after it are: so it
// looks ahead once more.
func (c *cycle) sweepEvictions(ctx context.Context, out *Phase, b budget) error {
	b.evictAt = time.Time{}
	if err := c.sweep(&c.eviction)(ctx, out, b); err != nil {
		return err
	}
	return c.lookAhead(ctx)
}

// cleanUp removes partitions that are empty and were quiet for long enough.
func (c *cycle) cleanUp(ctx context.Context, out *Phase, b budget) error {
	if !c.cfg.Cleanup {
		return nil
	}
	due, err := c.session.ClockDue(ctx, cleanupClock, ClockPeriod)
	if err != nil {
		return fmt.Errorf("ask the clock: %w", err)
	}
	if !due && !c.cleaning {
		return nil
	}
	cutoff := c.plan.Now.Add(-c.cfg.CleanupAge)
	for {
		began := time.Now()
		step, err := c.session.CleanupStep(ctx, cutoff, c.cleaned, c.cleanup.rows)
		if gaveUp(err) && ctx.Err() == nil {
			out.TimedOut++
			c.cleanup.timedOut()
			return nil
		}
		if err != nil {
			return err
		}
		c.cleanup.took(time.Since(began))
		out.Lanes += int64(step.Examined)
		out.Rows += step.Deleted
		if c.cleaning, c.cleaned = !step.Done, step.Last; step.Done {
			c.cleaned = store.LaneKey{}
			return nil
		}
		if b.over(out.deleted()) {
			out.Unfinished = true
			return nil
		}
	}
}

// purgeMetrics removes old rows of the metrics tables. Its failure is no failure
// of the cycle, unless the session went with it.
func (c *cycle) purgeMetrics(ctx context.Context, out *Phase, _ budget) error {
	rows, err := c.session.PurgeMetrics(ctx, c.plan.Now.Add(-c.cfg.MetricsAge), c.cfg.BatchSize)
	out.Rows = rows
	if err != nil {
		out.Failed++
		if left, ok := c.purgeErrors.speak(); ok {
			c.log.WarnContext(ctx, "metrics were not purged", slog.Int("not_logged", left), logging.Err(err))
		}
	}
	return nil
}

// walk looks for lanes whose watermark is wrong, so that no phase sees them.
func (c *cycle) walk(ctx context.Context, out *Phase, b budget) error {
	due, err := c.session.ClockDue(ctx, walkClock, ClockPeriod)
	if err != nil {
		return fmt.Errorf("ask the clock: %w", err)
	}
	if due {
		if err := c.walkSteps(ctx, out, b, deepPlace, true); err != nil {
			return err
		}
	}
	if due || c.walking {
		return c.walkSteps(ctx, out, b, shallowPlace, false)
	}
	return nil
}

// walkSteps goes on from a place. A deep step reads a segment of every lane, and
// is made once; shallow ones read the lanes alone, and go on while they find
// something.
func (c *cycle) walkSteps(ctx context.Context, out *Phase, b budget, place string, deep bool) error {
	at, err := c.session.Position(ctx, place)
	if err != nil {
		return fmt.Errorf("read %s: %w", place, err)
	}
	for more := true; more; {
		w, err := c.session.WalkStep(ctx, at, walkLanes, deep)
		if gaveUp(err) && ctx.Err() == nil {
			out.TimedOut++
			return nil
		}
		if err != nil {
			return err
		}
		out.Lanes += int64(w.Examined)
		out.Rows += int64(w.Repaired)
		if at = w.Last; w.End {
			at = uuid.Nil
		}
		if more = !deep && !w.End && w.Repaired > 0; more && b.over(true) {
			out.Unfinished, more = true, false
		}
	}
	if !deep {
		c.walking = out.Unfinished
	}
	if err := c.session.SetPosition(ctx, place, at); err != nil {
		return fmt.Errorf("keep %s: %w", place, err)
	}
	return nil
}
