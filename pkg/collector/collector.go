package collector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// flushTimeout bounds one turn, and lastTimeout the one at the end: a process that
	// stops beside a dead database keeps about two seconds for what stops last.
	flushTimeout = 20 * time.Second
	lastTimeout  = 1500 * time.Millisecond
	// foldRows is how many partition events one statement moves, and foldRounds how
	// many statements a turn makes at most. What is left waits for the next turn, of
	// any replica.
	foldRows   = 5000
	foldRounds = 20
	// quiet is how long a failure is not logged again.
	quiet = 30 * time.Second
)

// Store is the part of the store that a Collector needs.
type Store interface {
	FlushMetrics(ctx context.Context, f *store.MetricsFlush) (queues int, err error)
	FoldPartitionEvents(ctx context.Context, rows int) (taken int, err error)
}

// Deps are what a Collector works with.
type Deps struct {
	Store   Store
	Replica store.Replica
	Pool    func() pgdb.Stat
	// Counters are what the process counts; nil: it has no queues.
	Counters *Counters
	Meter    metric.Meter
	Log      *slog.Logger
}

// Collector writes what a process counts. Its Run is a lifecycle component.
type Collector struct {
	Deps
	interval time.Duration
	process  *process
	metrics  *instruments
	failing  rate.Sometimes
	// pending was taken from the counters, and the database may not have it.
	pending *store.MetricsFlush
}

// New builds a Collector. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Collector, error) {
	var err error
	if deps.Counters == nil {
		deps.Counters = NewCounters(0)
	} else {
		err = observeTotals(deps.Meter, deps.Counters)
	}
	m, err2 := newInstruments(deps.Meter, deps.Counters)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("create collector metrics: %w", err)
	}
	return &Collector{
		Deps: deps, interval: cfg.interval(), process: newProcess(), metrics: m,
		failing: rate.Sometimes{First: 1, Interval: quiet},
	}, nil
}

// Run flushes until ctx ends, and once more then.
func (c *Collector) Run(ctx context.Context) error {
	for c.wait(ctx) {
		c.turn(ctx, flushTimeout)
	}
	c.turn(context.WithoutCancel(ctx), lastTimeout)
	return nil
}

// wait returns when a flush is due: after the interval, jittered so that replicas do
// not move in step, or when the counters are full. It reports false when ctx ended.
func (c *Collector) wait(ctx context.Context) bool {
	// Counters that are full while the database is away must not turn this into a
	// spin.
	if !lifecycle.Sleep(ctx, FlushFloor) {
		return false
	}
	left := c.interval - FlushFloor
	timer := time.NewTimer(left - rand.N(left/10+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-c.Counters.full:
	}
	return true
}

// turn makes one flush and moves partition events. A failure is logged: its counts
// are offered again.
func (c *Collector) turn(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := c.flush(ctx)
	c.metrics.flushed(ctx, err)
	if err == nil {
		err = c.fold(ctx)
	}
	if err != nil {
		c.failing.Do(func() { c.Log.WarnContext(ctx, "metrics not written", logging.Err(err)) })
	}
}

// flush writes what a former one could not, then what was counted since.
func (c *Collector) flush(ctx context.Context) error {
	if c.pending != nil {
		if err := c.write(ctx); err != nil {
			return err
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("mint a flush id: %w", err)
	}
	f := &store.MetricsFlush{ID: id, Replica: c.Replica}
	c.process.sample(f)
	pool := c.Pool()
	f.Worker.InUse, f.Worker.Idle = pool.InUse, pool.Idle
	f.System.Database.Size, f.System.Database.Idle, f.System.Database.Active = pool.Size, pool.Idle, pool.InUse
	c.Counters.take(f)
	c.pending = f
	return c.write(ctx)
}

// write offers the pending flush. One that can never be written is given up.
func (c *Collector) write(ctx context.Context) error {
	_, err := c.Store.FlushMetrics(ctx, c.pending)
	if err == nil {
		c.pending = nil
		return nil
	}
	if store.Classify(err) == store.Permanent {
		c.pending = nil
		return errors.Join(errGivenUp, err)
	}
	return err
}

// errGivenUp says that counts are lost: the database refused them.
var errGivenUp = errors.New("metrics were refused and are given up")

// fold moves the partition events that are there.
func (c *Collector) fold(ctx context.Context) error {
	for range foldRounds {
		n, err := c.Store.FoldPartitionEvents(ctx, foldRows)
		if err != nil || n < foldRows {
			return err
		}
	}
	return nil
}
