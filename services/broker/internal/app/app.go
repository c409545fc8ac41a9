package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/buildinfo"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/services/broker/internal/config"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

const serviceName = "queen-broker"

// errNotReady is what readiness reports until the boot is complete, and again
// once the stop has begun.
var errNotReady = errors.New("not ready")

// App is one broker.
type App struct {
	cfg    *config.Config
	log    *slog.Logger
	tel    *telemetry.Telemetry
	db     *pgdb.DB
	engine *engine
	server *httpapi.Server
	ops    *opsserver.Server
	ready  atomic.Bool
}

// New builds everything and starts nothing.
func New(ctx context.Context, cfg *config.Config, log *slog.Logger) (*App, error) {
	a := &App{cfg: cfg, log: log}
	var err error
	a.tel, err = telemetry.New(ctx, telemetry.Config{
		Service: serviceName, Version: buildinfo.Version(), Instance: cfg.Server.ServerID,
	})
	if err != nil {
		return nil, fmt.Errorf("start telemetry: %w", err)
	}
	if a.db, err = openDatabase(ctx, cfg, a.tel); err != nil {
		return nil, err
	}
	if a.engine, err = newEngine(cfg, a.db, a.tel, log); err != nil {
		return nil, err
	}
	if err := a.listeners(); err != nil {
		return nil, err
	}
	return a, nil
}

func openDatabase(ctx context.Context, cfg *config.Config, tel *telemetry.Telemetry) (*pgdb.DB, error) {
	tracers := tel.Tracers
	if !tel.Tracing {
		tracers = nil // statements pay nothing for spans nobody collects
	}
	db, err := pgdb.Open(ctx, cfg.Postgres, pgdb.WithTelemetry(tracers, tel.Meters))
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to PostgreSQL: %w", err)
	}
	return db, nil
}

// listeners builds the client and the operations listener.
func (a *App) listeners() error {
	deps := a.engine.deps()
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
		PopDefaults:      popDefaults(a.cfg),
	}, deps)
	if err != nil {
		return fmt.Errorf("build the HTTP surface: %w", err)
	}
	a.server = httpapi.NewServer(a.cfg.Server.Addr(), api, a.log)
	a.ops = opsserver.New(a.cfg.Ops, opsserver.Deps{
		Log: a.log, Metrics: deps.Prometheus, Ready: a.readiness, Health: a.db.Ping,
	})
	return nil
}

// readiness does not follow the database: a broker that has been ready answers
// for an outage itself, and taking all of them out of the balancer helps nobody.
func (a *App) readiness() error {
	if !a.ready.Load() {
		return errNotReady
	}
	return nil
}

// Run boots, serves until ctx ends or a part fails, and stops. Parts stop in
// reverse order; parked pops are answered first, so that the listener can drain.
func (a *App) Run(ctx context.Context) error {
	group := lifecycle.NewGroup(lifecycle.Config{
		StopTimeout: a.cfg.Server.ShutdownTimeout,
		Started: func() {
			a.ready.Store(true)
			a.log.InfoContext(ctx, "broker ready", slog.String(logging.KeyAddr, a.server.Addr()))
		},
		Stopping: func() {
			a.ready.Store(false)
			a.engine.pops.Close()
		},
	}, a.log)
	group.Add(lifecycle.Component{Name: "telemetry", Stop: a.tel.Shutdown})
	group.Add(lifecycle.Component{Name: "connection pool", Stop: func(context.Context) error {
		a.db.Close()
		return nil
	}})
	group.Add(a.ops.Component())
	group.Add(lifecycle.Component{Name: "schema", Start: a.prepareSchema})
	group.Add(lifecycle.Component{Name: "client listener", Start: a.server.Start, Run: a.server.Run, Stop: a.server.Stop})
	return group.Run(ctx)
}

// Migrate applies the schema and returns.
func (a *App) Migrate(ctx context.Context) error {
	defer a.db.Close()
	if err := a.waitDatabase(ctx); err != nil {
		return err
	}
	return a.applySchema(ctx)
}

// prepareSchema waits for the database and makes sure that it fits this binary.
func (a *App) prepareSchema(ctx context.Context) error {
	if err := a.waitDatabase(ctx); err != nil {
		return err
	}
	if !a.cfg.Server.ApplySchema {
		if err := schema.Check(ctx, a.db); err != nil {
			return fmt.Errorf("check the schema (QUEEN_APPLY_SCHEMA is off): %w", err)
		}
		return nil
	}
	return a.applySchema(ctx)
}

func (a *App) applySchema(ctx context.Context) error {
	began := time.Now()
	result, err := schema.Apply(ctx, a.db, schema.Options{Logger: a.log})
	if err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}
	a.log.InfoContext(ctx, "schema is in place", slog.Int("files_applied", len(result.Applied)),
		slog.Bool("database_newer", result.Newer), slog.Duration("elapsed", time.Since(began)))
	return nil
}

// waitDatabase tries to reach PostgreSQL until QUEEN_BOOT_DB_WAIT_MS has passed.
func (a *App) waitDatabase(ctx context.Context) error {
	deadline := time.Now().Add(a.cfg.Server.BootDBWait)
	for attempt := 0; ; attempt++ {
		err := a.db.Ping(ctx)
		if err == nil {
			return nil
		}
		pause := lifecycle.Backoff(attempt, lifecycle.LoopBackoffMin, lifecycle.LoopBackoffMax)
		if ctx.Err() != nil || time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("PostgreSQL at %s:%d cannot be reached (waited %s, QUEEN_BOOT_DB_WAIT_MS): %w",
				a.cfg.Postgres.Host, a.cfg.Postgres.Port, a.cfg.Server.BootDBWait, err)
		}
		a.log.WarnContext(ctx, "waiting for PostgreSQL", slog.Int(logging.KeyAttempt, attempt+1),
			slog.Duration(logging.KeyDelay, pause), logging.Err(err))
		if !lifecycle.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}
