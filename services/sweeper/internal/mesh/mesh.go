package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/lifecycle"
)

// Sweeper is what hints are for. Neither method blocks.
type Sweeper interface {
	// Due says that a timer is due at an instant of the database's clock.
	Due(at time.Time)
	// Kick says that a switch was flipped.
	Kick()
}

// Deps are what a Mesh works with.
type Deps struct {
	ServerID string
	// Installation identifies the database.
	Installation func(ctx context.Context) (uuid.UUID, error)
	Sweeper      Sweeper
	Log          *slog.Logger
	Meter        metric.Meter
}

// Mesh is this sweeper's membership in the pool. It is safe for concurrent use.
type Mesh struct {
	sweeper Sweeper
	pool    *hints.Pool
}

// New builds a Mesh. Nothing is bound before its component starts, and nothing at all
// when the configuration names no peers.
func New(cfg hints.Config, deps Deps) (*Mesh, error) {
	m := &Mesh{sweeper: deps.Sweeper}
	var err error
	m.pool, err = hints.New(cfg, hints.Deps{
		ID: deps.ServerID, Role: hints.Sweeper, Installation: deps.Installation, Receive: m.receive, Log: deps.Log, Meter: deps.Meter,
	})
	if err != nil {
		return nil, fmt.Errorf("build the hint pool: %w", err)
	}
	return m, nil
}

// Component returns the pool as a part of the process.
func (m *Mesh) Component() lifecycle.Component { return m.pool.Component() }

// Pushed tells the brokers that a lane has count new messages. It never blocks.
func (m *Mesh) Pushed(tenant uuid.UUID, queue, partition string, count int) {
	m.pool.Send(hints.Hint{Kind: hints.Pushed, Tenant: tenant, Queue: queue, Partition: partition, Count: count})
}

// receive does what a broker has hinted at. Whatever else comes is not for sweepers.
func (m *Mesh) receive(h hints.Hint) {
	switch h.Kind {
	case hints.TimerDue:
		m.sweeper.Due(h.At)
	case hints.FlagsChanged:
		m.sweeper.Kick()
	}
}
