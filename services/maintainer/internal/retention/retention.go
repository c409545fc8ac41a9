package retention

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/store"
)

// Deps are what a Retention works with.
type Deps struct {
	Store   *store.Store
	Log     *slog.Logger
	Meter   metric.Meter
	Tracers trace.TracerProvider // nil: no spans
}

// Retention runs the cycle of one replica. Its methods may be called at any time
// and beside each other: the lock keeps their work apart.
type Retention struct {
	cfg     Config
	open    opener
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer
}

// New prepares the cycle. Nothing is connected yet.
func New(cfg Config, deps Deps) (*Retention, error) {
	return newRetention(cfg, deps, sessions(deps.Store))
}

func newRetention(cfg Config, deps Deps, open opener) (*Retention, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create retention metrics: %w", err)
	}
	if deps.Tracers == nil {
		deps.Tracers = noop.NewTracerProvider()
	}
	return &Retention{
		cfg: cfg.withDefaults(), open: open, log: deps.Log, metrics: m,
		tracer: deps.Tracers.Tracer(traceScope),
	}, nil
}

// Run makes a cycle every Interval until ctx ends. Errors are logged and never
// end it. A cycle that left work behind in the middle of deleting overran its
// time, and is followed by the next one at once.
func (r *Retention) Run(ctx context.Context) error {
	l := r.newLeader()
	defer l.close(ctx)
	j := newJournal(r.log)
	for ctx.Err() == nil {
		began := time.Now()
		report, err := l.cycle(ctx)
		j.cycle(ctx, report, err)
		next := began.Add(r.cfg.Interval)
		if err == nil && report.backlog() {
			next = time.Now()
		}
		r.rest(ctx, l, j, next)
	}
	return nil
}

// rest waits for the next cycle. Evictions that fall due before it get a turn of
// their own at that instant.
func (r *Retention) rest(ctx context.Context, l *leader, j *journal, next time.Time) {
	for ctx.Err() == nil {
		at, ok := l.turnAt()
		if !ok || !at.Before(next) {
			lifecycle.Sleep(ctx, time.Until(next))
			return
		}
		if !lifecycle.Sleep(ctx, time.Until(at)) {
			return
		}
		report, err := l.evict(ctx)
		j.turn(ctx, report, err)
	}
}

// Once makes one cycle now and reports what it did, also when it failed on its
// way. The error is ErrNotLeader when another replica is in the middle of one.
func (r *Retention) Once(ctx context.Context) (Report, error) {
	l := r.newLeader()
	l.single = true
	defer l.close(ctx)
	return l.cycle(ctx)
}

// The outcomes of a cycle.
const (
	outcomeSkipped = "skipped" // another replica leads
	outcomeFailed  = "failed"
	outcomeSwept   = "swept"
	outcomeIdle    = "idle"
)

func outcome(report Report, err error) string {
	switch {
	case errors.Is(err, ErrNotLeader):
		return outcomeSkipped
	case err != nil:
		return outcomeFailed
	case report.Deleted():
		return outcomeSwept
	}
	return outcomeIdle
}
