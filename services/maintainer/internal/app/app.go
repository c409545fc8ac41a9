package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/maintainer/internal/config"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

// App is one maintainer.
type App struct {
	*worker.Worker
	cfg  *config.Config
	log  *slog.Logger
	jobs *jobs
}

// New assembles a maintainer. Nothing is connected or bound yet.
func New(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	w, err := worker.New(ctx, worker.Config{
		Service: "maintainer", Process: cfg.Process, Ops: cfg.Ops, Postgres: cfg.Postgres, Metrics: cfg.Jobs.Metrics, Rates: cfg.Rates,
	}, log)
	if err != nil {
		return nil, err
	}
	a := &App{Worker: w, cfg: cfg, log: log}
	if a.jobs, err = a.newJobs(); err != nil {
		return nil, errors.Join(err, w.Close(ctx))
	}
	w.Tell(a.jobs.retention.Rates)
	return a, nil
}

// Run works until ctx ends.
func (a *App) Run(ctx context.Context) error { return a.Worker.Run(ctx, a.jobs.components()...) }

// RunOnce makes one retention cycle, or with dry only finds out what it would
// delete. The error is retention.ErrNotLeader when another maintainer is at it. The
// App is of no use afterwards.
func (a *App) RunOnce(ctx context.Context, dry bool) (r retention.Report, err error) {
	cycle := a.jobs.retention.Once
	if dry {
		cycle = a.jobs.retention.DryRun
	}
	err = a.Once(ctx, func(ctx context.Context) (err error) {
		r, err = cycle(ctx)
		return err
	})
	return r, err
}
