package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// DryRun reports what a cycle would delete if it had all the time it needs. It
// takes no lock and deletes nothing, so it may run beside a leader. It says
// nothing of partitions and metrics, and of the sidecar only on how many lanes it
// would be purged.
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
		lanes *lanePhase
		of    func(ctx context.Context, q store.QueuePlan, lane uuid.UUID) (store.Step, error)
	}{
		{&f.retention, f.retained},
		{&f.txns, func(context.Context, store.QueuePlan, uuid.UUID) (store.Step, error) { return store.Step{}, nil }},
		{&f.eviction, f.evicted},
	} {
		out := Phase{Name: p.lanes.name}
		began := time.Now()
		for _, q := range plan.Queues {
			if !p.lanes.due(q) {
				continue
			}
			out.Queues++
			if err := f.queue(ctx, p.lanes, q, p.of, &out); err != nil {
				return fmt.Errorf("%s of queue %q: %w", out.Name, q.Name, err)
			}
		}
		out.Elapsed = time.Since(began)
		report.Phases = append(report.Phases, out)
	}
	return nil
}

// queue goes through the lanes of one queue and adds up what would go.
func (f *forecast) queue(ctx context.Context, lanes *lanePhase, q store.QueuePlan,
	of func(context.Context, store.QueuePlan, uuid.UUID) (store.Step, error), out *Phase,
) error {
	way, part := lanes.way(q), f.parts.of(q)
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
