package app

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/services/maintainer/internal/config"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// bundle is a maintainer under test.
type bundle struct {
	*App
	t      *testing.T
	client *http.Client
	cancel context.CancelFunc
	done   chan error
}

func configFor(pg pgdb.Config) *config.Config {
	return &config.Config{
		Process:  config.Process{ServerID: "test", BootDBWait: 30 * time.Second, ShutdownTimeout: 20 * time.Second},
		Ops:      opsserver.Config{Addr: "127.0.0.1:0"},
		Postgres: pg,
		Jobs: config.Jobs{
			Retention: config.Retention{Interval: 100 * time.Millisecond, BatchSize: 1000, Cleanup: true, CleanupDays: 30, MetricsDays: 90},
			Stats:     config.Stats{Interval: time.Second, RetainedBytesInterval: time.Minute},
			Metrics:   collector.Config{Flush: time.Second},
		},
	}
}

// launch starts a maintainer in the background.
func launch(t *testing.T, cfg *config.Config) *bundle {
	t.Helper()
	return launchLogging(t, cfg, logtest.New(t))
}

func launchLogging(t *testing.T, cfg *config.Config, log *slog.Logger) *bundle {
	t.Helper()
	a, err := New(t.Context(), cfg, log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b := &bundle{App: a, t: t, client: &http.Client{Transport: &http.Transport{}}, cancel: cancel, done: make(chan error, 1)}
	go func() { b.done <- a.Run(ctx) }()
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		cancel()
	})
	return b
}

// work waits until the maintainer works.
func (b *bundle) work() {
	b.t.Helper()
	select {
	case <-b.started:
	case err := <-b.done:
		b.t.Fatalf("the maintainer ended: %v", err)
	case <-time.After(patience):
		b.t.Fatal("the maintainer does not start")
	}
}

func (b *bundle) stop() error {
	b.client.CloseIdleConnections()
	b.cancel()
	return <-b.done
}

func (b *bundle) get(path string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, "http://"+b.ops.Addr()+path, nil)
	require.NoError(b.t, err)
	res, err := b.client.Do(req)
	require.NoError(b.t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	return res.StatusCode, string(body)
}

func TestMaintainerWorksAndStops(t *testing.T) {
	t.Parallel()
	b := launch(t, configFor(pgtest.NewConfig(t)))
	b.work()
	for _, path := range []string{"/live", "/ready", "/health"} {
		code, body := b.get(path)
		require.Equal(t, http.StatusOK, code, "%s: %s", path, body)
	}
	_, metrics := b.get("/metrics")
	for _, family := range []string{"queen_db_pool_size", "queen_uptime_seconds", "go_goroutines", "queen_retention_since_success_seconds"} {
		require.Contains(t, metrics, "\n"+family)
	}
	require.Eventually(t, func() bool {
		_, metrics := b.get("/metrics")
		return strings.Contains(metrics, "\nqueen_retention_leader 1\n")
	}, patience, time.Millisecond, "the only maintainer leads")
	require.NoError(t, b.stop())
	require.ErrorIs(t, b.ready(t.Context()), errStopping)
}

func TestRunOnceMakesACycleAndCloses(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.NewConfig(t))
	for _, dry := range []bool{false, true} {
		a, err := New(t.Context(), cfg, logtest.New(t))
		require.NoError(t, err)
		r, err := a.RunOnce(t.Context(), dry)
		require.NoError(t, err)
		require.Equal(t, retention.PhaseRetention, r.Phases[0].Name)
		require.False(t, r.Deleted())
		require.ErrorIs(t, a.db.Ping(t.Context()), pgdb.ErrPool, "the pool is closed")
	}
}

func TestRunOnceNeedsServerAndSchema(t *testing.T) {
	t.Parallel()
	for want, pg := range map[error]pgdb.Config{
		schema.ErrNotReady: pgtest.Empty(t),
		pgdb.ErrPool:       {Host: "127.0.0.1", Port: 1, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000},
	} {
		cfg := configFor(pg)
		cfg.Process.BootDBWait = time.Millisecond
		a, err := New(t.Context(), cfg, logtest.New(t))
		require.NoError(t, err)
		_, err = a.RunOnce(t.Context(), false)
		require.ErrorIs(t, err, want)
	}
}

func TestMaintainerIsUnreadyUntilThereIsASchema(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.Empty(t))
	// Waiting for a schema is not bounded by the wait for the server.
	cfg.Process.BootDBWait = time.Second
	log, lines := logtest.NewRecorder()
	b := launchLogging(t, cfg, log)
	require.Eventually(t, func() bool { return strings.Contains(lines.String(), "msg=waiting component=schema") }, patience, time.Millisecond)
	code, body := b.get("/ready")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "the schema is not ready")
	code, body = b.get("/health")
	require.Equal(t, http.StatusOK, code, body)

	require.NoError(t, b.db.InstallSchema(t.Context()))
	b.work()
	code, body = b.get("/ready")
	require.Equal(t, http.StatusOK, code, body)
	require.NoError(t, b.stop())
}

func TestLosingTheDatabaseMakesUnready(t *testing.T) {
	t.Parallel()
	b := launch(t, configFor(pgtest.NewConfig(t)))
	b.work()
	b.db.Close()
	for _, path := range []string{"/ready", "/health"} {
		code, body := b.get(path)
		require.Equal(t, http.StatusServiceUnavailable, code, "%s: %s", path, body)
	}
	code, _ := b.get("/live")
	require.Equal(t, http.StatusOK, code)
	require.NoError(t, b.stop())
}

func TestBootGivesUpOnAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgdb.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000})
	cfg.Process.BootDBWait = 200 * time.Millisecond
	err := <-launch(t, cfg).done
	require.ErrorIs(t, err, pgdb.ErrPool)
	require.ErrorContains(t, err, "start database: PostgreSQL at 127.0.0.1:1 did not answer within 200ms")
}

func TestBootIsInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]*config.Config{
		"for the server": configFor(pgdb.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000}),
		"for the schema": configFor(pgtest.Empty(t)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := launch(t, cfg)
			require.NoError(t, b.stop())
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
	err = <-launch(t, cfg).done
	require.ErrorContains(t, err, "start operations listener: listen on 127.0.0.1:")
	require.ErrorContains(t, err, "change QUEEN_OPS_ADDR")
}
