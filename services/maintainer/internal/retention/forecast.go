package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// DryRun reports what a cycle would delete if it had all the time it needs and its
// clocks were due. It takes no lock and deletes nothing, so it may run beside a
// leader. Partitions that the phases before would empty are not among those to be
// removed.
func (r *Retention) DryRun(ctx context.Context) (Report, error) {
	l := r.newLeader()
	defer l.close(ctx)
	report := Report{Began: time.Now()}
	f := &forecast{leader: l, parts: tally{}}
	err := f.run(ctx, &report)
	report.Elapsed = time.Since(report.Began)
	report.Queues = f.parts.sorted()
	return report, err
}

// phaseFunc is the look at one phase.
type phaseFunc func(ctx context.Context, out *Phase) error

// forecast looks at the lanes as the phases would.
type forecast struct {
	*leader
	parts tally
}

func (f *forecast) run(ctx context.Context, report *Report) error {
	if err := f.connect(ctx); err != nil {
		return err
	}
	plan, err := f.session.Plan(ctx)
	if err != nil {
		return fmt.Errorf("make the plan: %w", err)
	}
	for _, p := range []struct {
		name string
		look phaseFunc
	}{
		{PhaseRetention, f.lanes(plan, &f.retention, f.retained)},
		{PhaseTxns, f.lanes(plan, &f.txns, f.purged)},
		{PhaseEviction, f.lanes(plan, &f.eviction, f.evicted)},
		{PhaseCleanup, f.partitions(plan.Now.Add(-f.cfg.CleanupAge))},
		{PhaseMetrics, f.metricRows(plan.Now.Add(-f.cfg.MetricsAge))},
	} {
		out := Phase{Name: p.name}
		began := time.Now()
		if err := p.look(ctx, &out); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		out.Elapsed = time.Since(began)
		report.Phases = append(report.Phases, out)
	}
	return nil
}

// laneForecast says what steps would do to one lane.
type laneForecast func(ctx context.Context, q store.QueuePlan, lane uuid.UUID) (store.Step, error)

// lanes looks at a phase that goes through lanes.
func (f *forecast) lanes(plan store.Plan, lanes *lanePhase, of laneForecast) phaseFunc {
	return func(ctx context.Context, out *Phase) error {
		for _, q := range plan.Queues {
			if !lanes.due(q) {
				continue
			}
			out.Queues++
			if err := f.queue(ctx, lanes, q, of, out); err != nil {
				return fmt.Errorf("queue %q: %w", q.Name, err)
			}
		}
		return nil
	}
}

// partitions looks at what the cleanup would remove.
func (f *forecast) partitions(cutoff time.Time) phaseFunc {
	return func(ctx context.Context, out *Phase) error {
		after := store.LaneKey{}
		for more := f.cfg.Cleanup; more; {
			page, err := f.session.ForecastCleanup(ctx, cutoff, after, f.cfg.BatchSize)
			if err != nil {
				return err
			}
			out.Lanes += int64(page.Examined)
			out.Rows += page.Deleted
			after, more = page.Last, !page.Done
		}
		return nil
	}
}

// metricRows looks at what the purge of the metrics would remove.
func (f *forecast) metricRows(cutoff time.Time) phaseFunc {
	return func(ctx context.Context, out *Phase) (err error) {
		out.Rows, err = f.session.ForecastMetrics(ctx, cutoff)
		return err
	}
}

// queue goes through the lanes of one queue and adds up what would go.
func (f *forecast) queue(ctx context.Context, lanes *lanePhase, q store.QueuePlan, of laneForecast, out *Phase) error {
	// Straight on, whatever the phase does: a look that takes long meets no range again.
	way, part := &straight{}, f.parts.of(q)
	for {
		s, ok := way.next()
		if !ok {
			return nil
		}
		page, err := lanes.page(ctx, q, s)
		if err != nil {
			return err
		}
		for _, lane := range page.Due {
			step, err := of(ctx, q, lane)
			if err != nil {
				return err
			}
			out.Lanes++
			lanes.book(out, part, step)
		}
		held := page.Examined - len(page.Due)
		if lanes == &f.retention {
			out.Held += int64(held)
			part.Held += int64(held)
		}
		way.seen(page, held)
	}
}

func (f *forecast) retained(ctx context.Context, q store.QueuePlan, lane uuid.UUID) (store.Step, error) {
	return f.ask(ctx, lane, q.All, q.Completed)
}

func (f *forecast) purged(ctx context.Context, q store.QueuePlan, lane uuid.UUID) (store.Step, error) {
	rows, err := f.session.ForecastTxns(ctx, lane, *q.Txns)
	return store.Step{Deleted: rows}, err
}

// evicted is what is left for the eviction of what the rules before it take: both
// take from the head of the lane.
func (f *forecast) evicted(ctx context.Context, q store.QueuePlan, lane uuid.UUID) (store.Step, error) {
	all, err := f.ask(ctx, lane, q.MaxWait, nil)
	if err != nil || q.All == nil && q.Completed == nil {
		return all, err
	}
	before, err := f.ask(ctx, lane, q.All, q.Completed)
	return store.Step{
		Deleted:  max(0, all.Deleted-before.Deleted),
		Messages: max(0, all.Messages-before.Messages),
		Bytes:    max(0, all.Bytes-before.Bytes),
	}, err
}

func (f *forecast) ask(ctx context.Context, lane uuid.UUID, all, completed *time.Time) (store.Step, error) {
	c, err := f.session.Forecast(ctx, lane, all, completed)
	return store.Step{Deleted: c.Segments, Messages: c.Messages, Bytes: c.Bytes}, err
}
