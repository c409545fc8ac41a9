package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/codes"

	"github.com/queenmq/queen/pkg/store"
)

// cycle is one cycle, or one turn of the eviction, while it goes on.
type cycle struct {
	*leader
	plan   store.Plan
	report Report
	parts  tally
	failed []error // what went wrong and did not end the cycle
}

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
	err = errors.Join(append(c.failed, err)...)
	c.report.Elapsed = time.Since(c.report.Began)
	c.report.Queues = c.parts.sorted()
	if err != nil && !errors.Is(err, ErrNotLeader) {
		span.SetStatus(codes.Error, err.Error())
	}
	return c.report, err
}

// all runs the phases in their order. A phase whose time is up leaves the rest to
// the next cycle. One that fails is left out: the others do not depend on it.
func (c *cycle) all(ctx context.Context) error {
	if err := c.makePlan(ctx); err != nil {
		return err
	}
	if err := c.bear(ctx, c.lookAhead(ctx)); err != nil {
		return err
	}
	for _, p := range phases {
		if err := c.phase(ctx, p.name, p.run); err != nil {
			return err
		}
	}
	return nil
}

// phases are those of a cycle, in their order.
var phases = []struct {
	name string
	run  func(c *cycle, ctx context.Context, out *Phase, b budget) error
}{
	{PhaseRetention, (*cycle).sweepRetention},
	{PhaseTxns, (*cycle).sweepTxns},
	{PhaseEviction, (*cycle).sweepEvictions},
	{PhaseCleanup, (*cycle).cleanUp},
	{PhaseMetrics, (*cycle).purgeMetrics},
	{PhaseWalk, (*cycle).walk},
}

func (c *cycle) evictions(ctx context.Context) error {
	if err := c.makePlan(ctx); err != nil {
		return err
	}
	return c.phase(ctx, PhaseEviction, (*cycle).sweepEvictions)
}

// bear notes an error with which the cycle can go on. It returns one that comes with
// the loss of the session, or with the end of the process.
func (c *cycle) bear(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && !c.lost() {
		c.failed = append(c.failed, err)
		return nil
	}
	return err
}

func (c *cycle) makePlan(ctx context.Context) (err error) {
	if c.plan, err = c.session.Plan(ctx); err != nil {
		return fmt.Errorf("make the plan: %w", err)
	}
	c.metrics.plan(c.plan)
	return nil
}

// phase runs one phase and reports on it.
func (c *cycle) phase(ctx context.Context, name string, run func(*cycle, context.Context, *Phase, budget) error) error {
	ctx, span := c.tracer.Start(ctx, "retention "+name)
	out := Phase{Name: name}
	began := time.Now()
	err := run(c, ctx, &out, budget{began: began, evictAt: c.evictAt})
	out.Elapsed = time.Since(began)
	if err != nil {
		out.Failed++
		err = fmt.Errorf("%s: %w", name, err)
	}
	c.report.Phases = append(c.report.Phases, out)
	c.metrics.phase(ctx, out)
	endPhase(span, out, err)
	return c.bear(ctx, err)
}

// sweep is a phase that goes through lanes.
func (c *cycle) sweep(ctx context.Context, lanes *lanePhase, out *Phase, b budget) error {
	s := &sweep{lanePhase: lanes, budget: b, out: out, parts: c.parts}
	err := s.run(ctx, c.plan.Queues)
	if s.failed != nil {
		c.failed = append(c.failed, fmt.Errorf("%s: %w", lanes.name, s.failed))
	}
	return err
}

func (c *cycle) sweepTxns(ctx context.Context, out *Phase, b budget) error {
	return c.sweep(ctx, &c.txns, out, b)
}

func (c *cycle) sweepRetention(ctx context.Context, out *Phase, b budget) error {
	c.forget(c.plan)
	err := c.sweep(ctx, &c.retention, out, b)
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
	err := c.sweep(ctx, &c.eviction, out, b)
	if ctx.Err() != nil || c.lost() {
		return err
	}
	return errors.Join(err, c.lookAhead(ctx))
}
