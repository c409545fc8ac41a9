package timers

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/worker/giveway"
	"github.com/queenmq/queen/services/sweeper/internal/kv"
)

const (
	// errorQuiet is the least time between two lines about a failure of a kind.
	errorQuiet = 30 * time.Second
	// summaryEvery is the least time between two lines about what was fired.
	summaryEvery = time.Minute
)

// Deps are what a Sweeper works with.
type Deps struct {
	Store  *store.Store
	Packer *segment.Packer
	// Announce is told what has been stored in a lane, after its commit. It never
	// blocks, and is called from several goroutines.
	Announce func(tenant uuid.UUID, queue, partition string, count int)
	Log      *slog.Logger
	Meter    metric.Meter
	Tracers  trace.TracerProvider // nil: no spans
}

// Sweeper runs the cycle of one process. Any number of processes may do so.
type Sweeper struct {
	cfg      Config
	db       database
	announce func(tenant uuid.UUID, queue, partition string, count int)
	loader   *loader
	log      *slog.Logger
	metrics  *metrics
	tracer   trace.Tracer
	upkeep   *kv.Upkeep
	way      *giveway.Way // to others at work
	switches *switches
	bell     *bell
	sums     sums

	// Of the loop alone.
	first    int // shard at which this cycle begins
	weight   int64
	pressure pressure
	haste    haste
	summary  summary

	quiet sync.Mutex
	lines map[string]*logging.Quiet
}

// New prepares the cycle. Nothing is connected yet.
func New(cfg Config, deps Deps) (*Sweeper, error) { return newSweeper(cfg, deps, deps.Store) }

func newSweeper(cfg Config, deps Deps, db database) (*Sweeper, error) {
	cfg = cfg.Raised()
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create the metrics of timers: %w", err)
	}
	reader, err := segment.NewReader(PayloadMax)
	if err != nil {
		return nil, err
	}
	if deps.Tracers == nil {
		deps.Tracers = noop.NewTracerProvider()
	}
	s := &Sweeper{
		cfg: cfg, db: newAdmission(db, cfg.Parallelism), announce: deps.Announce, log: deps.Log, metrics: m,
		loader: &loader{packer: deps.Packer, reader: reader, limit: cfg.MaxFireBytes, time: min(LoadTime, cfg.Lease/4), seed: maphash.MakeSeed()},
		tracer: deps.Tracers.Tracer("github.com/queenmq/queen/services/sweeper/internal/timers"),
		bell:   newBell(), first: rand.IntN(store.SweepShards), lines: map[string]*logging.Quiet{},
	}
	s.way = giveway.New(giving, s.db.OthersAtWork)
	s.switches = &switches{
		read: s.db.KVSwitches, flipped: s.flipped, log: deps.Log, errors: logging.Quiet{Every: errorQuiet}, kick: make(chan struct{}, 1),
	}
	s.upkeep, err = kv.New(kv.Config{
		ExpireEvery: cfg.ExpireEvery, ExpireBatch: cfg.ExpireBatch, UsageEvery: cfg.UsageEvery,
		IdleMax: cfg.IdleMaxSleep, IdleAfter: cfg.IdleAfterCycles,
	}, kv.Deps{Store: s.db, Log: deps.Log, Meter: deps.Meter, Tracer: s.tracer, Phases: m.phases})
	return s, err
}

// Due is a hint that a timer is due at an instant of the database's clock. It never
// blocks.
func (s *Sweeper) Due(at time.Time) { s.bell.due(at) }

// Kick has the operator's switches read now. It never blocks.
func (s *Sweeper) Kick() { s.switches.now() }

// flipped takes up what has waited.
func (s *Sweeper) flipped(fire bool) {
	s.metrics.off.Store(!fire)
	if fire {
		s.bell.now()
	}
}
