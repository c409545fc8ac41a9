package app

import (
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
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/pkg/worker/workertest"
	"github.com/queenmq/queen/services/maintainer/internal/config"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func configFor(pg pgdb.Config) *config.Config {
	return &config.Config{
		Process:  worker.Process{ServerID: "test", BootDBWait: 30 * time.Second, ShutdownTimeout: 20 * time.Second},
		Ops:      opsserver.Config{Addr: "127.0.0.1:0"},
		Postgres: pg,
		Jobs: config.Jobs{
			Retention: config.Retention{Interval: 100 * time.Millisecond, BatchSize: 1000, Cleanup: true, CleanupDays: 30, MetricsDays: 90},
			Stats:     config.Stats{Interval: time.Second, RetainedBytesInterval: time.Minute},
			Metrics:   collector.Config{Flush: time.Second},
		},
	}
}

func TestMaintainerWorksAndStops(t *testing.T) {
	t.Parallel()
	a, err := New(t.Context(), configFor(pgtest.NewConfig(t)), logtest.New(t))
	require.NoError(t, err)
	p := workertest.Launch(t, a)
	p.Work()
	_, metrics := p.Get("/metrics")
	require.Contains(t, metrics, "\nqueen_retention_since_success_seconds")
	require.Eventually(t, func() bool {
		_, metrics := p.Get("/metrics")
		return strings.Contains(metrics, "\nqueen_retention_leader 1\n")
	}, workertest.Patience, time.Millisecond, "the only maintainer leads")
	require.NoError(t, p.Stop())
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
		require.ErrorIs(t, a.Ready(t.Context()), pgdb.ErrPool, "the pool is closed")
	}
}

func TestRunOnceNeedsAServer(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgdb.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000})
	cfg.Process.BootDBWait = time.Millisecond
	a, err := New(t.Context(), cfg, logtest.New(t))
	require.NoError(t, err)
	r, err := a.RunOnce(t.Context(), false)
	require.ErrorIs(t, err, pgdb.ErrPool)
	require.Empty(t, r.Phases)
}
