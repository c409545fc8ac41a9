package stats

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
)

// Defaults of Config.
const (
	IntervalDefault              = 10 * time.Second
	RetainedBytesIntervalDefault = 10 * time.Minute
)

const (
	// restAfterRefresh and restAfterStep are the pause after a piece of work, in
	// multiples of its duration: a refresh takes a twentieth of the time at most,
	// the measuring of retained bytes, which nobody waits for, a fifth.
	restAfterRefresh = 20
	restAfterStep    = 4

	// busyPause is how soon a replica looks again after it met the lock held. The
	// holder is at work for some tenths of a second.
	busyPause = time.Second

	// errorQuiet is the least time between two lines about a failure.
	errorQuiet = 30 * time.Second
)

// Config says how often things are done.
type Config struct {
	// Interval is the time from the start of one refresh to the start of the next.
	Interval time.Duration
	// RetainedBytesInterval is the same for the walk that measures retained bytes.
	RetainedBytesInterval time.Duration
}

// Deps is what a Reconciler works with.
type Deps struct {
	Store *store.Store
	Log   *slog.Logger
	Meter metric.Meter
}

// Summary is what a refresh did.
type Summary = store.StatsSummary

// walk is one measurement of the retained bytes, step by step.
type walk interface {
	Step(ctx context.Context) (store.StatsTurn, error)
	Finished() bool
}

// Reconciler keeps the statistics of the database. Its methods are not safe for
// concurrent use; other replicas, in other processes, are expected.
type Reconciler struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	refresh func(ctx context.Context, every time.Duration) (store.StatsTurn, Summary, error)
	begin   func(ctx context.Context, every time.Duration) (walk, store.StatsTurn, error)

	refreshing, measuring lane
	walk                  walk      // in progress
	walkBegan             time.Time // of it
	errors                logging.Quiet
}

// lane is one of the two things a Reconciler does.
type lane struct {
	name     string
	next     time.Time // when to look again
	failures int       // in a row
}

// New returns a Reconciler that has done nothing yet.
func New(cfg Config, deps Deps) (*Reconciler, error) {
	cfg.Interval = cmp.Or(cfg.Interval, IntervalDefault)
	cfg.RetainedBytesInterval = cmp.Or(cfg.RetainedBytesInterval, RetainedBytesIntervalDefault)
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, err
	}
	return &Reconciler{
		cfg: cfg, metrics: m, log: deps.Log.With(slog.String(logging.KeyComponent, "stats")),
		refresh: deps.Store.RefreshStats,
		begin: func(ctx context.Context, every time.Duration) (walk, store.StatsTurn, error) {
			w, turn, err := deps.Store.BeginRetainedBytes(ctx, every)
			if w == nil {
				return nil, turn, err
			}
			return w, turn, err
		},
		errors: logging.Quiet{Every: errorQuiet}, refreshing: lane{name: refreshLane}, measuring: lane{name: retainedLane},
	}, nil
}

// Once refreshes the statistics now, whatever the clock says. It reports false
// when another replica is just doing it.
func (r *Reconciler) Once(ctx context.Context) (Summary, bool, error) {
	began := time.Now()
	turn, sum, err := r.refresh(ctx, 0)
	r.metrics.took(ctx, refreshLane, turn, time.Since(began), err)
	return sum, err == nil && turn.State == store.StatsDone, err
}

// Run works until ctx ends; it is a Component's Run. No error ends it.
func (r *Reconciler) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		now := time.Now()
		if !now.Before(r.refreshing.next) {
			pause := r.refreshTurn(ctx)
			r.refreshing.next = time.Now().Add(pause)
		}
		// Measured after a refresh: the first one makes the rows.
		if !now.Before(r.measuring.next) {
			pause := r.measureTurn(ctx)
			r.measuring.next = time.Now().Add(pause)
		}
		next := r.refreshing.next
		if r.measuring.next.Before(next) {
			next = r.measuring.next
		}
		lifecycle.Sleep(ctx, time.Until(next))
	}
	return nil
}

// refreshTurn refreshes, if it is time, and returns when to look again.
func (r *Reconciler) refreshTurn(ctx context.Context) time.Duration {
	began := time.Now()
	turn, sum, err := r.refresh(ctx, r.cfg.Interval)
	elapsed := time.Since(began)
	r.metrics.took(ctx, refreshLane, turn, elapsed, err)
	if err != nil {
		return r.failed(ctx, &r.refreshing, elapsed, err)
	}
	r.refreshing.failures = 0
	if turn.State != store.StatsDone {
		return r.skipped(turn, r.cfg.Interval)
	}
	r.log.DebugContext(ctx, "statistics refreshed", slog.Int64(logging.KeyQueues, sum.Queues), slog.Int64(logging.KeyPartitions, sum.Partitions),
		slog.Duration(logging.KeyElapsed, elapsed))
	return max(r.cfg.Interval-elapsed, restAfterRefresh*elapsed)
}

// measureTurn begins a measurement, if it is time, or makes one more step of it, and
// returns when to look again.
func (r *Reconciler) measureTurn(ctx context.Context) time.Duration {
	began := time.Now()
	if r.walk == nil {
		w, turn, err := r.begin(ctx, r.cfg.RetainedBytesInterval)
		if err != nil || turn.State != store.StatsDone {
			r.metrics.took(ctx, retainedLane, turn, time.Since(began), err)
			if err != nil {
				return r.failed(ctx, &r.measuring, time.Since(began), err)
			}
			return r.skipped(turn, r.cfg.RetainedBytesInterval)
		}
		r.walk, r.walkBegan = w, began
	}
	turn, err := r.walk.Step(ctx)
	elapsed := time.Since(began)
	if err != nil {
		r.metrics.took(ctx, retainedLane, turn, elapsed, err)
		return r.failed(ctx, &r.measuring, elapsed, err)
	}
	r.measuring.failures = 0
	switch {
	case turn.State == store.StatsBusy:
		return busyPause
	case r.walk.Finished():
		return r.measured(ctx, turn)
	}
	return restAfterStep * elapsed
}

// measured ends a measurement.
func (r *Reconciler) measured(ctx context.Context, turn store.StatsTurn) time.Duration {
	elapsed := time.Since(r.walkBegan)
	r.walk = nil
	r.metrics.took(ctx, retainedLane, turn, elapsed, nil)
	r.log.DebugContext(ctx, "retained bytes measured", slog.Duration(logging.KeyElapsed, elapsed))
	return max(r.cfg.RetainedBytesInterval-elapsed, 0)
}

// skipped is the pause after a turn that was not made.
func (r *Reconciler) skipped(turn store.StatsTurn, interval time.Duration) time.Duration {
	if turn.State == store.StatsEarly {
		return turn.Wait
	}
	return min(interval, busyPause)
}

// failed logs a failure and returns the pause before another attempt: a growing
// one, and the rest that the work of the database calls for.
func (r *Reconciler) failed(ctx context.Context, l *lane, elapsed time.Duration, err error) time.Duration {
	pause := lifecycle.Backoff(l.failures, lifecycle.LoopBackoffMin, lifecycle.LoopBackoffMax)
	if !errors.Is(err, pgdb.ErrPool) { // otherwise it did nothing
		pause = max(pause, restAfterRefresh*elapsed)
	}
	l.failures++
	if ctx.Err() != nil { // it failed because it is being stopped
		return pause
	}
	if left, ok := r.errors.Speak(); ok {
		r.log.WarnContext(ctx, "statistics could not be kept and will be tried again", slog.String(logging.KeyLane, l.name),
			slog.Int(logging.KeyAttempt, l.failures), slog.Duration(logging.KeyDelay, pause), slog.Int(logging.KeyNotLogged, left), logging.Err(err))
	}
	return pause
}
