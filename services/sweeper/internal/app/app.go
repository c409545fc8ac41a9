package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/sweeper/internal/config"
	"github.com/queenmq/queen/services/sweeper/internal/mesh"
	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

const component = "sweeper"

// App is one sweeper.
type App struct {
	*worker.Worker
	cfg     *config.Config
	log     *slog.Logger
	sweeper *timers.Sweeper
	mesh    *mesh.Mesh
	fired   atomic.Int64 // timers whose messages are stored
}

// New assembles a sweeper. Nothing is connected or bound yet.
func New(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	w, err := worker.New(ctx, worker.Config{
		Service: component, Process: cfg.Process, Ops: cfg.Ops, Postgres: cfg.Postgres, Metrics: cfg.Metrics, Rates: cfg.Rates,
	}, log)
	if err != nil {
		return nil, err
	}
	a := &App{Worker: w, cfg: cfg, log: log}
	if err := a.assemble(); err != nil {
		return nil, errors.Join(err, w.Close(ctx))
	}
	return a, nil
}

func (a *App) assemble() error {
	packer, err := segment.NewPacker(a.cfg.Sweeper.ZstdLevel)
	if err != nil {
		return fmt.Errorf("build the packer: %w", err)
	}
	a.sweeper, err = timers.New(a.cfg.Sweeper.Cycle, timers.Deps{
		Store: a.Store(), Packer: packer, Announce: a.announce,
		Log: a.log.With(slog.String(logging.KeyComponent, component)), Meter: a.Meter(component), Tracers: a.Tracers(),
	})
	if err != nil {
		return fmt.Errorf("build the sweeper: %w", err)
	}
	a.Tell(a.sweeper.Rates)
	a.mesh, err = mesh.New(a.cfg.Mesh, mesh.Deps{
		ServerID: a.cfg.Process.ServerID, Installation: a.Store().Installation, Sweeper: a.sweeper,
		Log: a.log.With(slog.String(logging.KeyComponent, "mesh")), Meter: a.Meter("mesh"),
	})
	return err
}

// announce tells the brokers what a fire has stored.
func (a *App) announce(tenant uuid.UUID, queue, partition string, count int) {
	a.fired.Add(int64(count))
	a.mesh.Pushed(tenant, queue, partition, count)
}

// Run works until ctx ends. Switched off, it does so by doing nothing.
func (a *App) Run(ctx context.Context) error {
	if !a.cfg.Sweeper.Enabled {
		a.log.WarnContext(ctx, "the sweeper is switched off: timers wait, and expired keys are not pruned",
			slog.String(logging.KeyVariable, "QUEEN_SWEEPER"))
		return a.Worker.Run(ctx)
	}
	// The pool outlives the cycle, to tell of its last fires.
	return a.Worker.Run(ctx, a.mesh.Component(), lifecycle.Component{Name: component, Run: a.sweeper.Run})
}
