package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/boot"
	"github.com/queenmq/queen/pkg/buildinfo"
	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/rates"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
)

// The states of a worker.
const (
	starting int32 = iota
	working
	stopping
)

var (
	errStarting = errors.New("starting")
	errStopping = errors.New("stopping")
)

// Config is what every worker is configured with.
type Config struct {
	Service  string // such as maintainer
	Process  Process
	Ops      opsserver.Config
	Postgres pgdb.Config
	Metrics  collector.Config // what the process writes about itself
	Rates    rates.Config     // what it tells in the log
}

// Worker is one process. Its jobs are for the service to add.
type Worker struct {
	cfg     Config
	log     *slog.Logger
	tel     *telemetry.Telemetry
	db      *boot.Database
	store   *store.Store
	metrics *collector.Collector
	rates   []rates.Source
	ops     *opsserver.Server
	state   atomic.Int32
	started chan struct{} // closed once it works
}

// New assembles a worker. Nothing is connected or bound yet.
func New(ctx context.Context, cfg Config, log *slog.Logger) (*Worker, error) {
	w := &Worker{cfg: cfg, log: log, started: make(chan struct{})}
	var err error
	w.tel, err = telemetry.New(ctx, telemetry.Config{
		Service: w.name(), Version: buildinfo.Version(), Instance: cfg.Process.ServerID,
	})
	if err != nil {
		return nil, fmt.Errorf("start telemetry: %w", err)
	}
	if err := w.assemble(ctx); err != nil {
		return nil, errors.Join(err, w.tel.Shutdown(ctx))
	}
	return w, nil
}

// name is that of the service among all there may be where telemetry goes.
func (w *Worker) name() string { return "queen-" + w.cfg.Service }

// service is the name in the log.
func (w *Worker) service() slog.Attr { return slog.String(logging.KeyService, w.cfg.Service) }

func (w *Worker) assemble(ctx context.Context) (err error) {
	if w.db, err = boot.Open(ctx, w.cfg.Postgres, w.cfg.Process.BootDBWait, w.tel, w.log); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			w.db.Close()
		}
	}()
	if err := w.db.Observe(w.tel.Meters.Meter(w.name())); err != nil {
		return err
	}
	w.store = store.New(w.db.DB)
	w.metrics, err = collector.New(w.cfg.Metrics, collector.Deps{
		Store: w.store, Pool: w.db.Stat, Log: w.log, Meter: w.Meter("collector"),
		Replica: store.Replica{Service: w.cfg.Service, Host: w.cfg.Process.ServerID, PID: os.Getpid()},
	})
	if err != nil {
		return fmt.Errorf("build the metrics collector: %w", err)
	}
	w.ops = opsserver.New(w.cfg.Ops, opsserver.Deps{
		Log: w.log, Metrics: w.tel.Handler(w.log), Ready: w.Ready, Health: w.db.Ping,
	})
	return nil
}

// Tell has the log tell at intervals what a source counts. It is for before Run.
func (w *Worker) Tell(source rates.Source) { w.rates = append(w.rates, source) }

// Store is where the jobs work.
func (w *Worker) Store() *store.Store { return w.store }

// Meter is what one part of the service records with.
func (w *Worker) Meter(part string) metric.Meter { return w.tel.Meters.Meter(w.name() + "/" + part) }

// Tracers are for the spans of the jobs.
func (w *Worker) Tracers() trace.TracerProvider { return w.tel.Tracers }

// Started is closed once the worker works.
func (w *Worker) Started() <-chan struct{} { return w.started }

// OpsAddr is where the operations listener listens.
func (w *Worker) OpsAddr() string { return w.ops.Addr() }

// Ready reports whether the worker can work: it runs, PostgreSQL answers, and the
// schema is there. Nobody sends requests here, so losing the database may show: a
// worker that cannot reach it is of no use.
func (w *Worker) Ready(ctx context.Context) error {
	state := w.state.Load()
	if state == stopping {
		return errStopping
	}
	if err := w.db.Usable(ctx); err != nil {
		return err
	}
	if state == starting {
		return errStarting
	}
	return nil
}

// Run starts the process and the jobs in it, works until ctx ends and stops them.
// Parts start in this order and stop in the reverse one; the metrics of the process
// outlive its jobs, to tell of them.
func (w *Worker) Run(ctx context.Context, jobs ...lifecycle.Component) error {
	w.log.InfoContext(ctx, "service is starting", w.service(), slog.String(logging.KeyVersion, buildinfo.Version()),
		slog.String(logging.KeyCommit, buildinfo.Commit()), slog.String(logging.KeyGo, runtime.Version()), slog.Int(logging.KeyPID, os.Getpid()))
	g := w.group(ctx)
	g.Add(lifecycle.Component{Name: "telemetry", Stop: w.tel.Shutdown})
	g.Add(w.ops.Component())
	// The pool exists already, so it is closed also when nobody answers behind it.
	g.Add(lifecycle.Component{Name: "connection pool", Stop: w.db.Disconnect})
	g.Add(lifecycle.Component{Name: "database", Start: w.db.Connect})
	g.Add(lifecycle.Component{Name: "schema", Start: w.db.AwaitSchema})
	g.Add(lifecycle.Component{Name: "metrics", Run: w.metrics.Run})
	g.Add(lifecycle.Component{Name: "rates", Run: rates.New(w.cfg.Rates, w.log.With(w.service()), append(w.rates, w.db.Rates)...).Run})
	for _, job := range jobs {
		g.Add(job)
	}
	err := g.Run(ctx)
	if err == nil {
		w.log.InfoContext(ctx, "service has stopped", w.service())
	}
	return err
}

func (w *Worker) group(ctx context.Context) *lifecycle.Group {
	began := time.Now()
	return lifecycle.NewGroup(lifecycle.Config{
		StopTimeout: w.cfg.Process.ShutdownTimeout,
		Started: func() {
			w.state.Store(working)
			close(w.started)
			w.log.InfoContext(ctx, "service is ready", w.service(), slog.Duration(logging.KeyElapsed, time.Since(began)))
		},
		Stopping: func() {
			w.state.Store(stopping)
			w.log.InfoContext(ctx, "service is stopping", w.service())
		},
	}, w.log)
}

// Once does one piece of work instead of Run, as soon as server and schema are
// there. The Worker is of no use afterwards.
func (w *Worker) Once(ctx context.Context, work func(context.Context) error) error {
	return errors.Join(w.once(ctx, work), w.Close(ctx))
}

func (w *Worker) once(ctx context.Context, work func(context.Context) error) error {
	if err := w.db.Connect(ctx); err != nil {
		return err
	}
	if err := w.db.RequireSchema(ctx); err != nil {
		return fmt.Errorf("check schema (brokers or `broker migrate` apply it): %w", err)
	}
	return work(ctx)
}

// Close ends a worker that does not run, within the deadline of a stop.
func (w *Worker) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Process.ShutdownTimeout)
	defer cancel()
	return errors.Join(w.db.Disconnect(ctx), w.tel.Shutdown(ctx))
}
