package config_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/config/configtest"
	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/rates"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/services/broker/internal/config"
)

// cleanEnv hides the variables of whoever runs the tests. They set the process
// environment, so they cannot run in parallel.
func cleanEnv(t *testing.T, pairs ...string) {
	t.Helper()
	configtest.Environment(t, []string{"POP_", "DEFAULT_", "PORT", "JWT_", "FILE_BUFFER_"}, pairs...)
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	cleanEnv(t, "HOSTNAME", "pod-1")
	got, err := config.Load()
	require.NoError(t, err)
	require.Equal(t, &config.Config{
		Server: config.Server{
			Port: 6632, BindAddr: "0.0.0.0", ServerID: "pod-1", MaxBodyBytes: 64 << 20, MaxInflightBytes: 256 << 20,
			ApplySchema: true, BootDBWait: time.Minute, ShutdownTimeout: 25 * time.Second,
		},
		Ops: opsserver.Config{Addr: ":6640"},
		Postgres: pgdb.Config{
			Host: "localhost", Port: 5432, User: "postgres", Password: "postgres", Database: "postgres",
			SSLVerify: true, PoolSize: 40, StatementTimeout: 30000, ApplicationName: "queen-broker",
		},
		Engine: config.Engine{PushDeadline: 10 * time.Second, ZstdLevel: 3, PoolReserve: 8, CacheRefresh: time.Minute},
		Fusion: config.Fusion{Shards: 8, BundleMax: 128},
		Dedup:  config.Dedup{Cache: true, CacheMB: 512},
		Hotlist: config.Hotlist{
			Enabled: true, Reseed: 30 * time.Second, IdleSweep: 5 * time.Minute, WindowBatch: 100,
		},
		PopFusion: config.PopFusion{Enabled: true, MaxClaims: 64, MaxPace: 20 * time.Millisecond},
		Acks:      config.Acks{Registry: true, RegistryMB: 64, Fusion: true, FusionShards: 1, FusionHold: 3 * time.Millisecond},
		Budget: config.Budget{
			ShareAck: 0.30, SharePop: 0.40, SharePush: 0.25, ShareMaint: 0.05,
			Tick: 500 * time.Millisecond, TrainGap: 300, MaxWaiting: 4096, NoSync: 64,
		},
		Flow: config.Flow{
			DefaultTimeout: 30 * time.Second, InitialInterval: 100 * time.Millisecond, Threshold: 3, Multiplier: 2,
			MaxInterval: time.Second, SubscriptionMode: "all", PendingGate: true,
			MaxParked: 20000, SegmentCacheMB: 32,
		},
		KV: config.KV{
			MaxValueBytes: 65536, MaxKeyBytes: 512, MaxOpsPerCall: 256, MaxKeysPerCall: 1024, MaxReadBytes: 4194304, PrefixLimit: 1000,
			ReadRate: 200, ReadBurst: 400, WriteRate: 100, WriteBurst: 200, CellRate: 2000, MaxTenants: 10000,
			QuotaRefresh: 30 * time.Second, ReleasePercent: 90, HotPercent: 80, ShedAfter: 5,
		},
		Timers:  config.Timers{MaxPayloadBytes: 1 << 20, MaxHorizonS: 7776000, MaxOps: 256},
		Browse:  config.Browse{PreviewBytes: 32 << 10},
		Sink:    config.Sink{SafeFloor: 30 * time.Second},
		Metrics: collector.Config{Flush: time.Minute, MaxQueues: 1000},
		Mesh: hints.Config{
			Enabled: true, Port: 6633, BindAddr: "0.0.0.0", Heartbeat: time.Second, DeadThreshold: 5 * time.Second,
		},
		Logging:   logging.Config{Level: logging.Level(slog.LevelInfo)},
		Rates:     config.Rates{Config: rates.Config{Every: 10 * time.Second}, TopQueues: 10},
		Telemetry: telemetry.Settings{Sampler: "parentbased_always_on", Ratio: 1},
	}, got)
	require.Equal(t, "0.0.0.0:6632", got.Server.Addr())
	require.Equal(t, 32, got.Slots())
	require.Equal(t, 8, got.HotlistShards())
	require.Equal(t, 4, got.KVPoolSize())
}

func TestSettingsOfQueuesAreRememberedForHalfAMinuteAtMost(t *testing.T) {
	for set, want := range map[string]time.Duration{"1000": time.Second, "30000": 30 * time.Second, "30001": 30 * time.Second, "86400000": 30 * time.Second} {
		cleanEnv(t, "QUEEN_CACHE_REFRESH_INTERVAL_MS", set)
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, want, got.Engine.SettingsAge(), set)
	}
}

func TestMetricsAreWrittenOnceASecondAtMost(t *testing.T) {
	for set, want := range map[string]time.Duration{
		"0": time.Second, "999": time.Second, "1000": time.Second, "1001": 1001 * time.Millisecond, "86400000": 24 * time.Hour,
	} {
		cleanEnv(t, "METRICS_FLUSH_MS", set)
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, want, got.Metrics.Flush, set)
	}
	cleanEnv(t, "METRICS_FLUSH_MS", "86400001")
	_, err := config.Load()
	require.ErrorContains(t, err, `METRICS_FLUSH_MS="86400001"`)
}

func TestShutdownDelayHasBounds(t *testing.T) {
	for set, want := range map[string]time.Duration{"0": 0, "300000": 5 * time.Minute} {
		cleanEnv(t, "QUEEN_SHUTDOWN_DELAY_MS", set)
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, want, got.Server.ShutdownDelay)
	}
	cleanEnv(t, "QUEEN_SHUTDOWN_DELAY_MS", "300001")
	_, err := config.Load()
	require.ErrorContains(t, err, `QUEEN_SHUTDOWN_DELAY_MS="300001": a number of milliseconds between 0 and 300000 is allowed`)
}

func TestEngineSettingsOutOfRangeAreNamed(t *testing.T) {
	cleanEnv(t, "QUEEN_V2_FUSION_SHARDS", "0", "QUEEN_V2_BUNDLE_MAX", "1025", "QUEEN_V2_FUSION_MAX_INFLIGHT", "-1",
		"QUEEN_DEDUP_CACHE_MB", "0", "QUEEN_HOTLIST_SHARDS", "-1", "QUEEN_HOTLIST_RESEED_MS", "999", "QUEEN_ACK_REGISTRY_MB", "0",
		"QUEEN_ADMISSION_MIN", "20", "QUEEN_ADMISSION_MAX", "10", "QUEEN_ADMISSION_SHARE_ACK", "1.5", "QUEEN_ADMISSION_MAX_WAITING", "0",
		"QUEEN_MAX_PARKED_POPS", "0", "QUEEN_SEGMENT_CACHE_MB", "-1", "QUEEN_ACK_FUSION_SHARDS", "0",
		"QUEEN_POP_FUSION_MAX_JOBS", "1025", "QUEEN_POP_FUSION_PACE_MS", "1001", "QUEEN_FETCH_SAFE_FLOOR_MS", "0",
		"QUEEN_CACHE_REFRESH_INTERVAL_MS", "999")
	_, err := config.Load()
	for _, want := range []string{
		`QUEEN_V2_FUSION_SHARDS="0": a whole number between 1 and 1024 is allowed`,
		`QUEEN_CACHE_REFRESH_INTERVAL_MS="999": a number of milliseconds between 1000 and 86400000 is allowed`,
		`QUEEN_V2_BUNDLE_MAX="1025": a whole number between 1 and 1024 is allowed`,
		`QUEEN_V2_FUSION_MAX_INFLIGHT="-1": a whole number between 0 and 1024 is allowed`,
		`QUEEN_DEDUP_CACHE_MB="0": a whole number between 1 and 1048576 is allowed`,
		`QUEEN_HOTLIST_SHARDS="-1": a whole number between 0 and 1024 is allowed`,
		`QUEEN_HOTLIST_RESEED_MS="999": a number of milliseconds between 1000 and 86400000 is allowed`,
		`QUEEN_ACK_REGISTRY_MB="0": a whole number between 1 and 1048576 is allowed`,
		`QUEEN_ACK_FUSION_SHARDS="0": a whole number between 1 and 1024 is allowed`,
		`QUEEN_POP_FUSION_MAX_JOBS="1025": a whole number between 1 and 1024 is allowed`,
		`QUEEN_POP_FUSION_PACE_MS="1001": a number of milliseconds between 0 and 1000 is allowed`,
		`QUEEN_ADMISSION_MIN="20": at most QUEEN_ADMISSION_MAX (10) is allowed`,
		`QUEEN_ADMISSION_MAX_WAITING="0": a whole number between 1 and 1000000 is allowed`,
		`QUEEN_ADMISSION_SHARE_ACK="1.5": a number between 0 and 1 is allowed`,
		`QUEEN_MAX_PARKED_POPS="0": a whole number between 1 and 1000000 is allowed`,
		`QUEEN_FETCH_SAFE_FLOOR_MS="0": a number of milliseconds between 1 and 86400000 is allowed`,
		`QUEEN_SEGMENT_CACHE_MB="-1": a whole number between 0 and 1048576 is allowed`,
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestLimitsOfTimersHaveBounds(t *testing.T) {
	for name, bounds := range map[string][2]string{
		"QUEEN_TIMERS_MAX_PAYLOAD_BYTES": {"1", "67108864"},
		"QUEEN_TIMERS_MAX_HORIZON_S":     {"1", "3153600000"},
		"QUEEN_TIMERS_MAX_OPS_PER_CALL":  {"1", "1024"},
		"QUEEN_BROWSE_PREVIEW_BYTES":     {"1", "1048576"},
	} {
		for _, good := range bounds {
			cleanEnv(t, name, good)
			_, err := config.Load()
			require.NoError(t, err, "%s=%s", name, good)
		}
		for _, bad := range []string{"0", bounds[1] + "0", "-1", "many"} {
			cleanEnv(t, name, bad)
			_, err := config.Load()
			require.ErrorContains(t, err, name+`="`+bad+`": a whole number`)
		}
	}
	cleanEnv(t, "QUEEN_TIMERS_MAX_HORIZON_S", "3153600000")
	got, err := config.Load()
	require.NoError(t, err)
	require.Equal(t, 100*365*24*time.Hour, got.Timers.Horizon())
}

func TestEveryProblemOfEveryBlockIsNamedAtOnce(t *testing.T) {
	cleanEnv(t, "PORT", "0", "QUEEN_BIND_ADDR", "0.0.0.0:6632", "QUEEN_MAX_INFLIGHT_BYTES", "1000", "QUEEN_APPLY_SCHEMA", "2",
		"QUEEN_STMT_TIMEOUT_MS", "100001", "PG_PORT", "x", "DB_POOL_SIZE", "1", "PG_SSL_ROOT_CERT", "/etc/ca.pem",
		"QUEEN_V2_ZSTD_LEVEL", "23", "POP_WAIT_BACKOFF_MULTIPLIER", "0.5", "DEFAULT_SUBSCRIPTION_MODE", "newest",
		"JWT_ENABLED", "true", "QUEEN_TENANCY_HEADER", "1", "QUEEN_ENCRYPTION_KEY", "s3cret", "LOG_LEVEL", "chatty", "QUEEN_OPS_ADDR", "6640")
	_, err := config.Load()
	for _, want := range []string{
		`PORT="0": a whole number between 1 and 65535 is allowed`,
		`QUEEN_BIND_ADDR="0.0.0.0:6632": a host name or an IP address without a port`,
		`QUEEN_MAX_INFLIGHT_BYTES="1000": at least QUEEN_MAX_BODY_BYTES (67108864)`,
		`QUEEN_APPLY_SCHEMA="2": true/false`,
		`QUEEN_STMT_TIMEOUT_MS="100001": a whole number between 1 and 100000 is allowed`,
		`PG_PORT="x": a whole number is allowed`,
		`DB_POOL_SIZE="1": a whole number between 2 and 10000 is allowed`,
		`PG_SSL_ROOT_CERT="...": the content of PEM certificates, not a path, is allowed`,
		`QUEEN_V2_ZSTD_LEVEL="23": a whole number between 1 and 22 is allowed`,
		`POP_WAIT_BACKOFF_MULTIPLIER="0.5": a number between 1 and 1000 is allowed`,
		`DEFAULT_SUBSCRIPTION_MODE="newest": all or new is allowed`,
		`JWT_ENABLED="true": only false (this version has no authentication) is allowed`,
		`QUEEN_ENCRYPTION_KEY="<set:6 chars>": 64 hexadecimal digits or nothing is allowed`,
		`QUEEN_TENANCY_HEADER="true": only false (this version has one tenant) is allowed`,
		`LOG_LEVEL="chatty": one level out of trace`,
		`QUEEN_OPS_ADDR="6640": host:port`,
	} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, err, "configuration: 17 problems\n")
}

func TestBindAddressTakesHostsOnly(t *testing.T) {
	for _, good := range []string{"", "localhost", "127.0.0.1", "::1", "::", "fe80::1%eth0", "broker-0.queen"} {
		cleanEnv(t, "QUEEN_BIND_ADDR", good)
		_, err := config.Load()
		require.NoError(t, err, good)
	}
	for _, bad := range []string{"localhost:6632", ":6632", "[::1]:6632", "[::1]", "http://x", "a b", "1.2.3.4:x"} {
		cleanEnv(t, "QUEEN_BIND_ADDR", bad)
		_, err := config.Load()
		require.ErrorContains(t, err, "QUEEN_BIND_ADDR", bad)
	}
}

func TestShowMasksSecretsAndWarnsAboutMistakes(t *testing.T) {
	cleanEnv(t, "PG_PASSWORD", "letmein", "QUEEN_MAX_BODY_BYTE", "1", "QUEEN_TEST_PG_URL", "x", "FILE_BUFFER_DIR", "/tmp",
		"PG_USE_SSL", "on", "PG_SSL_REJECT_UNAUTHORIZED", "off", "QUEEN_SWEEPER_LEASE_MS", "5",
		"QUEEN_SEG_PUSH_INIT", "8", "QUEEN_SEG_POP_MAX", "8", "QUEEN_VEGAS_ALPHA", "3", "QUEEN_VEGAS_BETA", "6",
		"QUEEN_ENCRYPTION_KEY", strings.Repeat("00ff", 16))
	got, err := config.Load()
	require.NoError(t, err)
	require.Regexp(t, `^queen-[0-9a-f]{8}$`, got.Server.ServerID)
	log, lines := logtest.NewRecorder()
	got.Show(t.Context(), log)

	require.NotContains(t, lines.String(), "letmein")
	require.NotContains(t, lines.String(), "00ff00ff")
	for _, want := range []string{
		`msg="config: server" PORT=6632 QUEEN_BIND_ADDR=0.0.0.0`,
		`msg="config: postgres" PG_URL=<unset> PG_HOST=localhost PG_PORT=5432 PG_USER=postgres PG_PASSWORD="<set:7 chars>"`,
		`ssl_trust=accept-any ssl_verified=false`,
		`msg="config: engine" QUEEN_PUSH_DEADLINE_MS=10000 QUEEN_V2_ZSTD_LEVEL=3 QUEEN_ADMISSION_POOL_RESERVE=8 QUEEN_CACHE_REFRESH_INTERVAL_MS=60000 slots=32`,
		`msg="config: flow" DEFAULT_TIMEOUT=30000`,
		`msg="config: logging" RUST_LOG=info QUEEN_LOG_JSON=false`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_MAX_BODY_BYTE did_you_mean=QUEEN_MAX_BODY_BYTES`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_SWEEPER_LEASE_MS` + "\n",
		`level=WARN msg="environment variable is not read" variable=QUEEN_SEG_PUSH_INIT`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_SEG_POP_MAX`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_VEGAS_ALPHA`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_VEGAS_BETA`,
		`msg="this version has no disk spool" variable=FILE_BUFFER_DIR`,
		`msg="any certificate of PostgreSQL is accepted"`,
		`msg="this version does not encrypt payloads"`,
	} {
		require.Contains(t, lines.String(), want)
	}
	require.NotContains(t, lines.String(), "QUEEN_TEST_PG_URL")
}

func TestSlotsLeaveConnectionsToTheRest(t *testing.T) {
	t.Parallel()
	for pool, want := range map[int]int{2: 1, 8: 4, 20: 12, 40: 32, 160: 152} {
		c := config.Config{Postgres: pgdb.Config{PoolSize: pool}, Engine: config.Engine{PoolReserve: 8}}
		require.Equal(t, want, c.Slots())
	}
}

func TestRatesAreToldOnceASecondAtMostAndOfAQueueAtLeast(t *testing.T) {
	for set, want := range map[string]config.Rates{
		"0":     {Config: rates.Config{Every: time.Second}, TopQueues: 1},
		"1001":  {Config: rates.Config{Every: 1001 * time.Millisecond}, TopQueues: 1001},
		"10000": {Config: rates.Config{Every: 10 * time.Second}, TopQueues: 10000},
	} {
		cleanEnv(t, "QUEEN_LOG_RATES_MS", set, "QUEEN_LOG_TOPN_QUEUES", set)
		got, err := config.Load()
		require.NoError(t, err)
		require.Equal(t, want, got.Rates)
	}
	cleanEnv(t, "QUEEN_LOG_RATES_MS", "86400001", "QUEEN_LOG_TOPN_QUEUES", "10001")
	_, err := config.Load()
	require.ErrorContains(t, err, "QUEEN_LOG_RATES_MS")
	require.ErrorContains(t, err, "QUEEN_LOG_TOPN_QUEUES")
}

func TestTheReadmeDescribesEveryVariable(t *testing.T) {
	t.Parallel()
	configtest.Documented(t, "../../../../README.md", &config.Config{})
}

func TestRuntimeRolesAreAList(t *testing.T) {
	t.Parallel()
	require.Empty(t, config.Server{RuntimeRole: " , "}.RuntimeRoles())
	require.Equal(t, []string{"one", "the other"}, config.Server{RuntimeRole: "one, the other,"}.RuntimeRoles())
}
