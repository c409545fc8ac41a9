package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/boot"
	"github.com/queenmq/queen/pkg/buildinfo"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/services/maintainer/internal/config"
)

const serviceName = "queen-maintainer"

// The states of a maintainer.
const (
	starting int32 = iota
	working
	stopping
)

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// App is one maintainer.
type App struct {
	cfg     *config.Config
	log     *slog.Logger
	tel     *telemetry.Telemetry
	db      *boot.Database
	jobs    *jobs
	ops     *opsserver.Server
	state   atomic.Int32
	started chan struct{} // closed once it works
}

// New assembles a maintainer. Nothing is connected or bound yet.
func New(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	a := &App{cfg: cfg, log: log, started: make(chan struct{})}
	var err error
	a.tel, err = telemetry.New(ctx, telemetry.Config{
		Service: serviceName, Version: buildinfo.Version(), Instance: cfg.Process.ServerID,
	})
	if err != nil {
		return nil, fmt.Errorf("start telemetry: %w", err)
	}
	if err := a.assemble(ctx); err != nil {
		return nil, errors.Join(err, a.tel.Shutdown(ctx))
	}
	return a, nil
}

func (a *App) assemble(ctx context.Context) (err error) {
	if a.db, err = boot.Open(ctx, a.cfg.Postgres, a.cfg.Process.BootDBWait, a.tel, a.log); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			a.db.Close()
		}
	}()
	if err := a.db.Observe(a.tel.Meters.Meter(serviceName)); err != nil {
		return err
	}
	if a.jobs, err = a.newJobs(); err != nil {
		return err
	}
	a.ops = opsserver.New(a.cfg.Ops, opsserver.Deps{
		Log: a.log, Metrics: a.tel.Handler(a.log), Ready: a.ready, Health: a.db.Ping,
	})
	return nil
}

// ShowConfig logs the resolved configuration.
func (a *App) ShowConfig(ctx context.Context) { a.cfg.Show(ctx, a.log) }

// ready reports whether the maintainer can work: it runs, PostgreSQL answers, and
// the schema is there. Nobody sends requests here, so losing the database may show:
// a maintainer that cannot reach it is of no use.
func (a *App) ready(ctx context.Context) error {
	state := a.state.Load()
	if state == stopping {
		return errStopping
	}
	if err := a.db.Usable(ctx); err != nil {
		return err
	}
	if state == starting {
		return errStarting
	}
	return nil
}

// Run starts the maintainer, works until ctx ends and stops it. Parts start in
// this order and stop in the reverse one.
func (a *App) Run(ctx context.Context) error {
	began := time.Now()
	a.log.InfoContext(ctx, "maintainer is starting", slog.String(logging.KeyVersion, buildinfo.Version()),
		slog.String("commit", buildinfo.Commit()), slog.String("go", runtime.Version()), slog.Int("pid", os.Getpid()))
	g := lifecycle.NewGroup(lifecycle.Config{
		StopTimeout: a.cfg.Process.ShutdownTimeout,
		Started: func() {
			a.state.Store(working)
			close(a.started)
			a.log.InfoContext(ctx, "maintainer is ready", slog.Duration(logging.KeyElapsed, time.Since(began)))
		},
		Stopping: func() {
			a.state.Store(stopping)
			a.log.InfoContext(ctx, "maintainer is stopping")
		},
	}, a.log)
	g.Add(lifecycle.Component{Name: "telemetry", Stop: a.tel.Shutdown})
	g.Add(a.ops.Component())
	// The pool exists already, so it is closed also when nobody answers behind it.
	g.Add(lifecycle.Component{Name: "connection pool", Stop: a.db.Disconnect})
	g.Add(lifecycle.Component{Name: "database", Start: a.db.Connect})
	g.Add(lifecycle.Component{Name: "schema", Start: a.db.AwaitSchema})
	a.jobs.addTo(g)
	err := g.Run(ctx)
	if err == nil {
		a.log.InfoContext(ctx, "maintainer has stopped")
	}
	return err
}
