package worker_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/pkg/worker/workertest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// idle is a worker with one job that waits for its end.
type idle struct {
	*worker.Worker
	job lifecycle.Component
}

func (i idle) Run(ctx context.Context) error { return i.Worker.Run(ctx, i.job) }

func configFor(pg pgdb.Config) worker.Config {
	return worker.Config{
		Service:  "idler",
		Process:  worker.Process{ServerID: "test", BootDBWait: 30 * time.Second, ShutdownTimeout: 20 * time.Second},
		Ops:      opsserver.Config{Addr: "127.0.0.1:0"},
		Postgres: pg,
		Metrics:  collector.Config{Flush: time.Second},
	}
}

// nobody is the address of a server that does not exist.
func nobody() pgdb.Config {
	return pgdb.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000}
}

func build(t *testing.T, cfg worker.Config, log *slog.Logger) idle {
	t.Helper()
	w, err := worker.New(t.Context(), cfg, log)
	require.NoError(t, err)
	return idle{w, lifecycle.Component{Name: "job", Run: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}}
}

func launch(t *testing.T, cfg worker.Config) (idle, *workertest.Process) {
	t.Helper()
	i := build(t, cfg, logtest.New(t))
	return i, workertest.Launch(t, i)
}

func TestWorkerWorksAndStops(t *testing.T) {
	t.Parallel()
	w, p := launch(t, configFor(pgtest.NewConfig(t)))
	p.Work()
	for _, path := range []string{"/live", "/ready", "/health"} {
		code, body := p.Get(path)
		require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
	}
	_, metrics := p.Get("/metrics")
	for _, family := range []string{"queen_db_pool_size", "queen_uptime_seconds", "go_goroutines"} {
		require.Contains(t, metrics, "\n"+family)
	}
	require.NoError(t, p.Stop())
	require.ErrorContains(t, w.Ready(t.Context()), "stopping")
}

func TestFailedJobEndsTheWorker(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	w := build(t, configFor(pgtest.NewConfig(t)), logtest.New(t))
	w.job.Run = func(context.Context) error { return boom }
	err := workertest.Launch(t, w).Wait()
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "job: boom")
}

func TestWorkerIsUnreadyUntilThereIsASchema(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.Empty(t))
	// Waiting for a schema is not bounded by the wait for the server.
	cfg.Process.BootDBWait = time.Second
	log, lines := logtest.NewRecorder()
	p := workertest.Launch(t, build(t, cfg, log))
	require.Eventually(t, func() bool { return strings.Contains(lines.String(), "msg=waiting component=schema") }, workertest.Patience, time.Millisecond)
	code, body := p.Get("/ready")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "the schema is not ready")
	code, body = p.Get("/health")
	require.Equal(t, http.StatusOK, code, body)

	install(t, cfg.Postgres)
	p.Work()
	code, body = p.Get("/ready")
	require.Equal(t, http.StatusOK, code, body)
	require.NoError(t, p.Stop())
}

func install(t *testing.T, cfg pgdb.Config) {
	t.Helper()
	db, err := pgdb.Open(t.Context(), cfg)
	require.NoError(t, err)
	defer db.Close()
	_, err = schema.Apply(t.Context(), db, schema.Options{Logger: logtest.New(t)})
	require.NoError(t, err)
}

func TestLosingTheDatabaseMakesUnready(t *testing.T) {
	t.Parallel()
	w, p := launch(t, configFor(pgtest.NewConfig(t)))
	p.Work()
	require.NoError(t, w.Close(t.Context()))
	for _, path := range []string{"/ready", "/health"} {
		code, body := p.Get(path)
		require.Equal(t, http.StatusServiceUnavailable, code, "%s: %s", path, body)
	}
	code, _ := p.Get("/live")
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, p.Stop())
}

func TestBootGivesUpOnAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	cfg := configFor(nobody())
	cfg.Process.BootDBWait = 200 * time.Millisecond
	_, p := launch(t, cfg)
	err := p.Wait()
	require.ErrorIs(t, err, pgdb.ErrPool)
	require.ErrorContains(t, err, "start database: PostgreSQL at 127.0.0.1:1 did not answer within 200ms")
}

func TestBootIsInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]worker.Config{"for the server": configFor(nobody()), "for the schema": configFor(pgtest.Empty(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, p := launch(t, cfg)
			require.NoError(t, p.Stop())
		})
	}
}

func TestTakenPortEndsTheBoot(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	cfg := configFor(pgtest.NewConfig(t))
	cfg.Ops.Addr = ln.Addr().String()
	_, p := launch(t, cfg)
	err = p.Wait()
	require.ErrorContains(t, err, "start operations listener: listen on 127.0.0.1:")
	require.ErrorContains(t, err, "change QUEEN_OPS_ADDR")
}

func TestOnceWorksAndCloses(t *testing.T) {
	t.Parallel()
	w := build(t, configFor(pgtest.NewConfig(t)), logtest.New(t))
	boom := errors.New("boom")
	require.ErrorIs(t, w.Once(t.Context(), func(ctx context.Context) error {
		_, err := w.Store().Installation(ctx)
		require.NoError(t, err)
		return boom
	}), boom)
	require.ErrorIs(t, w.Ready(t.Context()), pgdb.ErrPool, "the pool is closed")
}

func TestOnceNeedsServerAndSchema(t *testing.T) {
	t.Parallel()
	for want, pg := range map[error]pgdb.Config{schema.ErrNotReady: pgtest.Empty(t), pgdb.ErrPool: nobody()} {
		cfg := configFor(pg)
		cfg.Process.BootDBWait = time.Millisecond
		err := build(t, cfg, logtest.New(t)).Once(t.Context(), func(context.Context) error {
			t.Error("it must not work")
			return nil
		})
		require.ErrorIs(t, err, want)
	}
}

func TestProcessBoundsAndName(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	require.NoError(t, worker.Process{BootDBWait: 0, ShutdownTimeout: time.Millisecond}.Validate())
	require.NoError(t, worker.Process{BootDBWait: day, ShutdownTimeout: day}.Validate())
	for want, p := range map[string]worker.Process{
		"QUEEN_BOOT_DB_WAIT_MS=": {BootDBWait: day + time.Millisecond, ShutdownTimeout: day},
		"QUEEN_SHUTDOWN_TIMEOUT_MS=\"0\": a number of milliseconds between 1 and 86400000": {},
		"QUEEN_SHUTDOWN_TIMEOUT_MS=": {ShutdownTimeout: day + time.Millisecond},
	} {
		require.ErrorContains(t, p.Validate(), want)
	}
	named, anonymous := worker.Process{ServerID: "a"}, worker.Process{}
	named.Identify()
	anonymous.Identify()
	require.Equal(t, "a", named.ServerID)
	require.Regexp(t, `^queen-[0-9a-f]{8}$`, anonymous.ServerID)
}
