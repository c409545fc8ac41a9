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
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/services/broker/internal/config"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

const serviceName = "queen-broker"

// The states of a broker.
const (
	starting int32 = iota
	serving
	stopping
)

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// App is one broker.
type App struct {
	cfg     *config.Config
	log     *slog.Logger
	tel     *telemetry.Telemetry
	db      *boot.Database
	keys    *keys
	engine  *engine
	server  *httpapi.Server
	ops     *opsserver.Server
	state   atomic.Int32
	unfit   atomic.Pointer[error] // why the schema no longer admits this build, if so
	started chan struct{}         // closed once it serves
}

// New assembles a broker. Nothing is connected or bound yet.
func New(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	a := &App{cfg: cfg, log: log, started: make(chan struct{})}
	var err error
	a.tel, err = telemetry.New(ctx, telemetry.Config{
		Service: serviceName, Version: buildinfo.Version(), Instance: cfg.Server.ServerID,
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
	if a.db, err = boot.Open(ctx, a.cfg.Postgres, a.cfg.Server.BootDBWait, a.tel, a.log); err != nil {
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
	if a.engine, err = newEngine(a.cfg, a.db, a.tel, a.log); err != nil {
		return err
	}
	if a.keys, err = newKeys(ctx, a.cfg, a.engine, a.tel, a.log); err != nil {
		return err
	}
	a.engine.announcer.Switches = append(a.engine.announcer.Switches, a.keys.quotas)
	if err := a.listeners(); err != nil {
		a.keys.db.Close()
		return err
	}
	return nil
}

// listeners builds the client and the operations listener.
func (a *App) listeners() error {
	deps := a.engine.deps()
	a.keys.addTo(&deps)
	deps.Database = a.db
	deps.Log = a.log
	deps.Meter = a.tel.Meters.Meter(serviceName + "/httpapi")
	deps.Prometheus = a.tel.Handler(a.log)
	deps.Propagator = a.tel.Propagator
	if a.tel.Tracing {
		deps.Tracers = a.tel.Tracers
	}
	api, err := httpapi.New(httpapi.Config{
		Version:          buildinfo.Version(),
		MaxBodyBytes:     a.cfg.Server.MaxBodyBytes,
		MaxInflightBytes: a.cfg.Server.MaxInflightBytes,
		MaxWaiting:       a.cfg.Budget.MaxWaiting,
		FetchSafeFloor:   a.cfg.Sink.SafeFloor,
		PopDefaults:      popDefaults(a.cfg),
	}, deps)
	if err != nil {
		return fmt.Errorf("build the HTTP surface: %w", err)
	}
	a.server = httpapi.NewServer(a.cfg.Server.Addr(), api, a.log)
	a.ops = opsserver.New(a.cfg.Ops, opsserver.Deps{
		Log: a.log, Metrics: deps.Prometheus, Ready: func(context.Context) error { return a.ready() }, Health: a.db.Ping,
	})
	return nil
}

// ready reports whether the broker takes requests. Losing the database later
// does not make it unready: all replicas would be taken out at once, and the
// requests that need no database with them. Health tells that story. A schema that does
// not admit this build is another one: what it answers could be wrong.
func (a *App) ready() error {
	switch a.state.Load() {
	case serving:
		if unfit := a.unfit.Load(); unfit != nil {
			return *unfit
		}
		return nil
	case stopping:
		return errStopping
	}
	return errStarting
}

// Run starts the broker, serves until ctx ends and stops it. Parts start in
// this order and stop in the reverse one.
func (a *App) Run(ctx context.Context) error {
	began := time.Now()
	a.log.InfoContext(ctx, "broker is starting", slog.String(logging.KeyVersion, buildinfo.Version()),
		slog.String(logging.KeyCommit, buildinfo.Commit()), slog.String(logging.KeyGo, runtime.Version()), slog.Int(logging.KeyPID, os.Getpid()))
	g := lifecycle.NewGroup(lifecycle.Config{
		StopTimeout: a.cfg.Server.ShutdownTimeout,
		StopDelay:   a.cfg.Server.ShutdownDelay,
		Started: func() {
			a.state.Store(serving)
			close(a.started)
			a.log.InfoContext(ctx, "broker is ready", slog.String(logging.KeyAddr, a.server.Addr()), slog.Duration(logging.KeyElapsed, time.Since(began)))
		},
		Asked: func() {
			a.leave()
			a.log.InfoContext(ctx, "broker was asked to stop and goes on serving, unready", slog.Duration(logging.KeyDelay, a.cfg.Server.ShutdownDelay))
		},
		Stopping: func() {
			a.leave()
			a.log.InfoContext(ctx, "broker is stopping")
			// Parked pops are answered with nothing, so that the listener can drain.
			a.engine.pops.Close()
		},
	}, a.log)
	g.Add(lifecycle.Component{Name: "telemetry", Stop: a.tel.Shutdown})
	g.Add(a.ops.Component())
	// The pool exists already, so it is closed also when nobody answers behind it.
	g.Add(lifecycle.Component{Name: "connection pool", Stop: a.db.Disconnect})
	g.Add(lifecycle.Component{Name: "connection pool for keys", Stop: a.keys.db.Disconnect})
	g.Add(lifecycle.Component{Name: "database", Start: a.db.Connect})
	g.Add(lifecycle.Component{Name: "schema", Start: a.prepareSchema})
	g.Add(lifecycle.Component{Name: "schema watch", Run: lifecycle.Loop{
		Name: "schema watch", Interval: schemaWatch, Log: a.log, RunOnce: a.watchSchema,
	}.Run})
	g.Add(lifecycle.Component{Name: "modes", Start: a.engine.modes.Start, Run: a.engine.modes.Run})
	g.Add(lifecycle.Component{Name: "quotas", Start: a.keys.quotas.Start, Run: a.keys.quotas.Run})
	g.Add(lifecycle.Component{Name: "scrape", Run: a.engine.scrape.Run})
	// It stops after all that counts.
	g.Add(lifecycle.Component{Name: "metrics", Run: a.engine.collector.Run})
	g.Add(lifecycle.Component{Name: "rates", Run: a.newRates().Run})
	g.Add(lifecycle.Component{Name: "admission", Run: a.engine.gate.Run})
	g.Add(a.engine.mesh.Component())
	if a.engine.hot != nil {
		g.Add(lifecycle.Component{Name: "hot list", Run: a.engine.hot.Run})
	}
	g.Add(lifecycle.Component{Name: "parked pops", Run: a.engine.pops.Run})
	g.Add(lifecycle.Component{Name: "lookout", Run: a.engine.lookout.Run})
	g.Add(lifecycle.Component{Name: "client listener", Start: a.server.Start, Run: a.server.Run, Stop: a.drain})
	err := g.Run(ctx)
	if err == nil {
		a.log.InfoContext(ctx, "broker has stopped")
	}
	return err
}

// leave turns unready and has clients go elsewhere.
func (a *App) leave() {
	a.state.Store(stopping)
	a.server.Leave()
}

// prepareSchema applies the schema, or waits until somebody else has.
func (a *App) prepareSchema(ctx context.Context) error {
	if a.cfg.Server.ApplySchema {
		return a.db.InstallSchema(ctx, a.cfg.Server.RuntimeRoles()...)
	}
	err := a.db.RequireSchema(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("check schema (QUEEN_APPLY_SCHEMA is off; `broker migrate` applies it): %w", err)
}

// schemaWatch is how often a broker looks whether a newer one has applied a schema.
const schemaWatch = 5 * time.Second

// watchSchema notes whether the schema still admits this build.
func (a *App) watchSchema(ctx context.Context) error {
	err := a.db.Usable(ctx)
	switch {
	case errors.Is(err, schema.ErrTooNew):
		if a.unfit.Swap(&err) == nil {
			a.log.ErrorContext(ctx, "the schema no longer admits this version, which is unready from now on", logging.Err(err))
		}
	case err == nil && a.unfit.Swap(nil) != nil:
		a.log.WarnContext(ctx, "the schema admits this version again")
	}
	return nil // others tell of a database that is away
}

// drain closes the port and waits for what is still being worked on. A part of
// the time is kept for those that stop after it.
func (a *App) drain(ctx context.Context) error {
	if until, ok := ctx.Deadline(); ok {
		kept := min(2*time.Second, time.Until(until)/10)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, until.Add(-kept), lifecycle.ErrStopTimeout)
		defer cancel()
	}
	return a.server.Stop(ctx)
}

// Migrate applies the schema and ends. The App is of no use afterwards.
func (a *App) Migrate(ctx context.Context) error {
	err := a.db.Connect(ctx)
	if err == nil {
		err = a.db.InstallSchema(ctx, a.cfg.Server.RuntimeRoles()...)
	}
	a.keys.db.Close()
	a.db.Close()
	return errors.Join(err, a.tel.Shutdown(context.WithoutCancel(ctx)))
}
