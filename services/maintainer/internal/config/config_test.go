package config_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/config/configtest"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/rates"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/maintainer/internal/config"
)

// cleanEnv leaves nothing but the pairs that could configure a maintainer. The
// environment is the process's, so these tests cannot run in parallel.
func cleanEnv(t *testing.T, pairs ...string) {
	t.Helper()
	configtest.Environment(t, []string{"RETENTION_", "PARTITION_", "STATS_", "RETAINED_"}, pairs...)
}

func TestDefaults(t *testing.T) {
	cleanEnv(t, "HOSTNAME", "pod-1")
	got, err := config.Load()
	require.NoError(t, err)
	want := &config.Config{
		Process: worker.Process{ServerID: "pod-1", BootDBWait: time.Minute, ShutdownTimeout: 25 * time.Second},
		Ops:     opsserver.Config{Addr: ":6641"},
		Postgres: pgdb.Config{
			Host: "localhost", Port: 5432, User: "postgres", Password: "postgres", Database: "postgres",
			SSLVerify: true, PoolSize: 4, StatementTimeout: 30000, ApplicationName: "queen-maintainer",
		},
		Jobs: config.Jobs{
			Retention: config.Retention{
				Interval: 5 * time.Second, BatchSize: 1000, Parallelism: 1, Cleanup: true, CleanupDays: 30, MetricsDays: 90,
			},
			Stats:   config.Stats{Interval: 10 * time.Second, RetainedBytesInterval: 10 * time.Minute},
			Metrics: collector.Config{Flush: time.Minute, MaxQueues: 1000},
		},
		Logging:   logging.Config{Level: logging.Level(slog.LevelInfo)},
		Rates:     rates.Config{Every: rates.EveryDefault},
		Telemetry: telemetry.Settings{Sampler: "parentbased_always_on", Ratio: 1},
	}
	require.Empty(t, cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{})))
	require.Equal(t, 30*24*time.Hour, got.Jobs.Retention.CleanupAge())
	require.Equal(t, 90*24*time.Hour, got.Jobs.Retention.MetricsAge())
}

func TestEveryVariableIsRead(t *testing.T) {
	cleanEnv(t, "QUEEN_SERVER_ID", "m-2", "HOSTNAME", "pod-1", "QUEEN_BOOT_DB_WAIT_MS", "1", "QUEEN_SHUTDOWN_TIMEOUT_MS", "2",
		"QUEEN_OPS_ADDR", "", "QUEEN_PPROF", "yes", "DB_POOL_SIZE", "2", "RETENTION_INTERVAL", "2000", "RETENTION_BATCH_SIZE", "10000",
		"RETENTION_PARALLELISM", "8", "QUEEN_PARTITION_CLEANUP_ENABLED", "off", "PARTITION_CLEANUP_DAYS", "1", "METRICS_RETENTION_DAYS", "2",
		"STATS_INTERVAL_MS", "1000", "RETAINED_BYTES_INTERVAL_MS", "1001", "METRICS_FLUSH_MS", "1002")
	got, err := config.Load()
	require.NoError(t, err)
	require.Equal(t, worker.Process{ServerID: "m-2", BootDBWait: time.Millisecond, ShutdownTimeout: 2 * time.Millisecond}, got.Process)
	require.Equal(t, opsserver.Config{Profiles: true}, got.Ops, "an empty address switches the listener off")
	require.Equal(t, 2, got.Postgres.PoolSize)
	require.Equal(t, config.Jobs{
		Retention: config.Retention{Interval: 2 * time.Second, BatchSize: 10000, Parallelism: 8, CleanupDays: 1, MetricsDays: 2},
		Stats:     config.Stats{Interval: time.Second, RetainedBytesInterval: 1001 * time.Millisecond},
		Metrics:   collector.Config{Flush: 1002 * time.Millisecond, MaxQueues: 1000},
	}, got.Jobs)
}

func TestEveryProblemIsNamedAtOnce(t *testing.T) {
	cleanEnv(t, "RETENTION_INTERVAL", "86400001", "RETENTION_BATCH_SIZE", "10001", "RETENTION_PARALLELISM", "two",
		"QUEEN_PARTITION_CLEANUP_ENABLED", "maybe", "PARTITION_CLEANUP_DAYS", "-1", "METRICS_RETENTION_DAYS", "36501",
		"STATS_INTERVAL_MS", "soon", "RETAINED_BYTES_INTERVAL_MS", "86400001", "METRICS_FLUSH_MS", "-5",
		"DB_POOL_SIZE", "1", "PG_PORT", "0", "QUEEN_OPS_ADDR", "6641", "QUEEN_SHUTDOWN_TIMEOUT_MS", "0", "LOG_LEVEL", "chatty")
	_, err := config.Load()
	for _, want := range []string{
		`RETENTION_INTERVAL="86400001": a number of milliseconds between 0 and 86400000 is allowed`,
		`RETENTION_BATCH_SIZE="10001": a whole number between 0 and 10000 is allowed`,
		`RETENTION_PARALLELISM="two": a whole number is allowed`,
		`QUEEN_PARTITION_CLEANUP_ENABLED="maybe": true/false`,
		`PARTITION_CLEANUP_DAYS="-1": a whole number between 0 and 36500 is allowed`,
		`METRICS_RETENTION_DAYS="36501": a whole number between 0 and 36500 is allowed`,
		`STATS_INTERVAL_MS="soon": a whole number of milliseconds, 0 or more, is allowed`,
		`RETAINED_BYTES_INTERVAL_MS="86400001": a number of milliseconds between 0 and 86400000 is allowed`,
		`METRICS_FLUSH_MS="-5": a whole number of milliseconds, 0 or more, is allowed`,
		`DB_POOL_SIZE="1": a whole number between 2 and 10000 is allowed`,
		`PG_PORT="0": a whole number between 1 and 65535 is allowed`,
		`QUEEN_OPS_ADDR="6641": host:port, :port or nothing (off) is allowed`,
		`QUEEN_SHUTDOWN_TIMEOUT_MS="0": a number of milliseconds between 1 and 86400000 is allowed`,
		`LOG_LEVEL="chatty": one level out of trace`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, err, "configuration: 14 problems\n")
}

func TestSmallValuesAreRaisedToTheirFloorsAndSaidSo(t *testing.T) {
	cleanEnv(t, "RETENTION_INTERVAL", "0", "RETENTION_BATCH_SIZE", "0", "PARTITION_CLEANUP_DAYS", "0", "METRICS_RETENTION_DAYS", "0",
		"STATS_INTERVAL_MS", "999", "RETAINED_BYTES_INTERVAL_MS", "0", "METRICS_FLUSH_MS", "999")
	got, err := config.Load()
	require.NoError(t, err)
	require.Equal(t, config.Jobs{
		Retention: config.Retention{Interval: time.Millisecond, BatchSize: 1, Parallelism: 1, Cleanup: true, CleanupDays: 1, MetricsDays: 1},
		Stats:     config.Stats{Interval: time.Second, RetainedBytesInterval: time.Second},
		Metrics:   collector.Config{Flush: time.Second, MaxQueues: 1000},
	}, got.Jobs)
	log, lines := logtest.NewRecorder()
	got.Warn(t.Context(), log)
	require.Equal(t, 7, strings.Count(lines.String(), "value is below its floor and was raised"), lines.String())
	require.Contains(t, lines.String(), "variable=PARTITION_CLEANUP_DAYS requested=0 effective=1\n")
	require.Contains(t, lines.String(), "variable=STATS_INTERVAL_MS requested=999 effective=1000\n")
}

func TestShowMasksSecretsAndWarnNamesMistakes(t *testing.T) {
	cleanEnv(t, "PG_PASSWORD", "letmein", "PG_USE_SSL", "on", "PG_SSL_REJECT_UNAUTHORIZED", "off",
		"RETENTION_PARALLELISM", "4", "QUEEN_PARTITION_CLEANUP_ENABLE", "0", "QUEEN_TEST_LONG", "1")
	got, err := config.Load()
	require.NoError(t, err)
	require.Regexp(t, `^queen-[0-9a-f]{8}$`, got.Process.ServerID)
	log, lines := logtest.NewRecorder()
	got.Show(t.Context(), log)
	got.Warn(t.Context(), log)
	require.NotContains(t, lines.String(), "letmein")
	require.NotContains(t, lines.String(), "QUEEN_TEST_LONG")
	for _, want := range []string{
		`msg="config: server" QUEEN_SERVER_ID=queen-`,
		`msg="config: operations" QUEEN_OPS_ADDR=:6641 QUEEN_PPROF=false`,
		`msg="config: postgres" PG_URL=<unset> PG_HOST=localhost PG_PORT=5432 PG_USER=postgres PG_PASSWORD="<set:7 chars>"`,
		`DB_POOL_SIZE=4 QUEEN_STMT_TIMEOUT_MS=30000 ssl_trust=accept-any ssl_verified=false`,
		`msg="config: jobs" RETENTION_INTERVAL=5000 RETENTION_BATCH_SIZE=1000 RETENTION_PARALLELISM=4 QUEEN_PARTITION_CLEANUP_ENABLED=true PARTITION_CLEANUP_DAYS=30 ` +
			`METRICS_RETENTION_DAYS=90 STATS_INTERVAL_MS=10000 RETAINED_BYTES_INTERVAL_MS=600000 METRICS_FLUSH_MS=60000`,
		`msg="config: logging" RUST_LOG=info QUEEN_LOG_JSON=false`,
		`level=WARN msg="any certificate of PostgreSQL is accepted"`,
		`level=WARN msg="retention makes one step at a time whatever this variable says" variable=RETENTION_PARALLELISM`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_PARTITION_CLEANUP_ENABLE did_you_mean=QUEEN_PARTITION_CLEANUP_ENABLED`,
	} {
		require.Contains(t, lines.String(), want)
	}
}

func TestTheReadmeDescribesEveryVariable(t *testing.T) {
	t.Parallel()
	configtest.Documented(t, "../../../../README.md", &config.Config{})
}
