package kv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/phases"
)

const (
	// PruneTime is after how long a prune leaves the rest to the next one.
	PruneTime = 500 * time.Millisecond
	// TenantsMax is how many tenants have gauges of their own: the largest.
	TenantsMax = 200
	// tenantsCounted is how many tenants a rollup names.
	tenantsCounted = 10_000
	// errorQuiet is the least time between two lines about a failure.
	errorQuiet = 30 * time.Second
)

// The things that are done, as metrics and logs name them.
const (
	PhasePrune  = "prune"
	PhaseRollup = "rollup"
)

// Config says how often things are done.
type Config struct {
	// ExpireEvery is the time between two prunes, ExpireBatch the rows of one call.
	ExpireEvery time.Duration
	ExpireBatch int
	// UsageEvery is the time between two rollups.
	UsageEvery time.Duration
	// IdleMax is how far either time is doubled while nothing happens, which is so once
	// nothing did for IdleAfter cycles.
	IdleMax   time.Duration
	IdleAfter int
}

// Store is what the work needs of the database.
type Store interface {
	KVExpire(ctx context.Context, shards []int16, rows int) (store.KVExpired, error)
	KVMeasure(ctx context.Context, shards []int16, tenants int) (store.KVUsage, error)
	SweepTables(ctx context.Context) ([]store.TableSize, error)
}

// Deps are what an Upkeep works with.
type Deps struct {
	Store  Store
	Log    *slog.Logger
	Meter  metric.Meter
	Tracer trace.Tracer
	// Phases count beside the phases of others; nil: nobody does.
	Phases *phases.Recorder
}

// Shed says what is left out.
type Shed int

// The rungs of the ladder, from below.
const (
	ShedNothing Shed = iota
	ShedPrune
	ShedRollup // and the prune
)

// Cycle is what a cycle knows when it gives the upkeep its turn.
type Cycle struct {
	Shards []int16
	Shed   Shed
	// Empty says that there are no timers at all.
	Empty bool
}

// Upkeep prunes and measures. Its methods are for one goroutine.
type Upkeep struct {
	cfg     Config
	db      Store
	log     *slog.Logger
	metrics *metrics
	tracer  trace.Tracer
	phases  *phases.Recorder
	errors  logging.Quiet

	pruned        atomic.Int64
	prune, rollup phase
	empty         int           // cycles in a row in which nothing was there
	found         bool          // by the last prune
	running       chan struct{} // closed when what was started is over; nil: nothing was
	stopped       sync.WaitGroup
}

// Pruned is how many expired keys were deleted since the process began. It may be asked
// by any goroutine.
func (u *Upkeep) Pruned() int64 { return u.pruned.Load() }

// phase is one of the two things, and its gate.
type phase struct {
	name string
	kind phases.Phase
	gate gate
	off  bool // its procedure is missing
}

// New returns an Upkeep that has done nothing yet.
func New(cfg Config, deps Deps) (*Upkeep, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create the metrics of keys: %w", err)
	}
	return &Upkeep{
		cfg: cfg, db: deps.Store, log: deps.Log, metrics: m, tracer: deps.Tracer, phases: deps.Phases, errors: logging.Quiet{Every: errorQuiet},
		prune:  phase{name: PhasePrune, kind: phases.Prune, gate: gate{every: cfg.ExpireEvery, most: cfg.IdleMax}},
		rollup: phase{name: PhaseRollup, kind: phases.Rollup, gate: gate{every: cfg.UsageEvery, most: cfg.IdleMax}},
	}, nil
}

// Turn starts what is due, beside the caller, unless something is still under way.
func (u *Upkeep) Turn(ctx context.Context, c Cycle) {
	if u.busy() {
		return
	}
	u.notice(c.Empty)
	now := time.Now()
	rollup := u.open(ctx, &u.rollup, now, c.Shed >= ShedRollup)
	prune := u.open(ctx, &u.prune, now, c.Shed >= ShedPrune)
	if !rollup && !prune {
		return
	}
	done := make(chan struct{})
	u.running = done
	u.stopped.Go(func() {
		defer close(done)
		u.turn(ctx, c.Shards, rollup, prune)
	})
}

// Next is when a gate opens. There is none while something is under way: its end is
// noticed by the next cycle.
func (u *Upkeep) Next() (at time.Time, ok bool) {
	if u.busy() {
		return time.Time{}, false
	}
	for _, p := range []*phase{&u.prune, &u.rollup} {
		if next := p.gate.next(); !p.off && (!ok || next.Before(at)) {
			at, ok = next, true
		}
	}
	return at, ok
}

// Wait waits for what is under way.
func (u *Upkeep) Wait() { u.stopped.Wait() }

// Result is what Once did.
type Result struct {
	Expired store.KVExpired // Deleted is the sum of all calls
	Usage   store.KVUsage
}

// Once measures and prunes now, whatever the gates say, to the end or until ctx ends.
func (u *Upkeep) Once(ctx context.Context, shards []int16) (r Result, err error) {
	usage, err1 := u.measure(ctx, shards)
	expired, err2 := u.expire(ctx, shards, 0)
	return Result{Expired: expired, Usage: usage}, errors.Join(err1, err2)
}

func (u *Upkeep) busy() bool {
	if u.running == nil {
		return false
	}
	select {
	case <-u.running:
		u.running = nil
		return false
	default:
		return true
	}
}

// notice counts the cycles in which nothing was there. The gates come back to their
// usual times with the first in which something is.
func (u *Upkeep) notice(empty bool) {
	if empty && !u.found {
		u.empty++
		return
	}
	u.empty = 0
	u.prune.gate.doublings, u.rollup.gate.doublings = 0, 0
}

// open passes the gate of a phase, if it is open, and tells whether the phase is to run.
func (u *Upkeep) open(ctx context.Context, p *phase, now time.Time, shed bool) bool {
	if p.off || now.Before(p.gate.next()) {
		return false
	}
	p.gate.pass(now, u.empty > u.cfg.IdleAfter)
	if shed {
		u.metrics.ran(ctx, p.name, outcomeShed, 0)
		u.phases.Skipped(ctx, p.kind)
		return false
	}
	return true
}
