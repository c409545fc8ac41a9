package config_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/sweeper/internal/config"
	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

// cleanEnv leaves nothing but the pairs that could configure a sweeper. The
// environment is the process's, so these tests cannot run in parallel.
func cleanEnv(t *testing.T, pairs ...string) {
	t.Helper()
	configtest.Environment(t, nil, pairs...)
}

func TestDefaults(t *testing.T) {
	cleanEnv(t, "HOSTNAME", "pod-1")
	got, err := config.Load()
	require.NoError(t, err)
	want := &config.Config{
		Process: worker.Process{ServerID: "pod-1", BootDBWait: time.Minute, ShutdownTimeout: 25 * time.Second},
		Ops:     opsserver.Config{Addr: ":6642"},
		Postgres: pgdb.Config{
			Host: "localhost", Port: 5432, User: "postgres", Password: "postgres", Database: "postgres",
			SSLVerify: true, PoolSize: 8, StatementTimeout: 30000, ApplicationName: "queen-sweeper",
		},
		Sweeper: config.Sweeper{Enabled: true, ZstdLevel: 3, Cycle: timers.Config{
			MinSleep: 5 * time.Millisecond, MaxSleep: time.Second, IdleMaxSleep: 30 * time.Second, IdleAfterCycles: 5,
			EmptyClaimMin: 25 * time.Millisecond, EmptyClaimMax: 200 * time.Millisecond, Lease: 30 * time.Second,
			ClaimBatch: 200, CycleMaxRows: 5000, DueCap: 2000, MaxFireBytes: 8 << 20, Parallelism: 1, MaxAttempts: 5,
			BackoffMin: time.Second, BackoffMax: time.Minute, TransientBackoff: time.Second, IsolateOnPermanent: true,
			FireRatePerTenant: 50, ExpireEvery: time.Second, ExpireBatch: 1000, UsageEvery: 5 * time.Minute,
		}},
		Mesh: hints.Config{
			Enabled: true, Port: 6633, BindAddr: "0.0.0.0", Heartbeat: time.Second, DeadThreshold: 5 * time.Second,
		},
		Metrics:   collector.Config{Flush: time.Minute, MaxQueues: 1000},
		Logging:   logging.Config{Level: logging.Level(slog.LevelInfo)},
		Rates:     rates.Config{Every: rates.EveryDefault},
		Telemetry: telemetry.Settings{Sampler: "parentbased_always_on", Ratio: 1},
	}
	require.Empty(t, cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{})))
	require.Equal(t, timers.Defaults(), got.Sweeper.Cycle)
}

// knob is a number that can be set: what the lowest, the highest and a value of its
// own lead to. Waits are milliseconds.
type knob struct {
	name        string
	floor, high int
	read        func(timers.Config) int
}

func millis(read func(timers.Config) time.Duration) func(timers.Config) int {
	return func(c timers.Config) int { return int(read(c).Milliseconds()) }
}

const (
	day  = 86_400_000
	rows = 100_000
)

func knobs() []knob {
	return []knob{
		{"QUEEN_SWEEPER_MIN_SLEEP_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.MinSleep })},
		{"QUEEN_SWEEPER_MAX_SLEEP_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.MaxSleep })},
		{"QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.IdleMaxSleep })},
		{"QUEEN_SWEEPER_IDLE_AFTER_CYCLES", 1, rows, func(c timers.Config) int { return c.IdleAfterCycles }},
		{"QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.EmptyClaimMin })},
		{"QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.EmptyClaimMax })},
		{"QUEEN_SWEEPER_LEASE_MS", 100, day, millis(func(c timers.Config) time.Duration { return c.Lease })},
		{"QUEEN_SWEEPER_CLAIM_BATCH", 1, rows, func(c timers.Config) int { return c.ClaimBatch }},
		{"QUEEN_SWEEPER_CYCLE_MAX_ROWS", 1, rows, func(c timers.Config) int { return c.CycleMaxRows }},
		{"QUEEN_SWEEPER_DUE_CAP", 1, rows, func(c timers.Config) int { return c.DueCap }},
		{"QUEEN_SWEEPER_MAX_FIRE_BYTES", 1, 256 << 20, func(c timers.Config) int { return int(c.MaxFireBytes) }},
		{"QUEEN_SWEEPER_PARALLELISM", 1, 16, func(c timers.Config) int { return c.Parallelism }},
		{"QUEEN_SWEEPER_MAX_ATTEMPTS", 1, 1000, func(c timers.Config) int { return c.MaxAttempts }},
		{"QUEEN_SWEEPER_BACKOFF_MIN_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.BackoffMin })},
		{"QUEEN_SWEEPER_BACKOFF_MAX_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.BackoffMax })},
		{"QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.TransientBackoff })},
		{"QUEEN_SWEEPER_FIRE_RATE_PER_TENANT", 1, rows, func(c timers.Config) int { return c.FireRatePerTenant }},
		{"QUEEN_KV_EXPIRE_EVERY_MS", 1, day, millis(func(c timers.Config) time.Duration { return c.ExpireEvery })},
		{"QUEEN_KV_EXPIRE_BATCH", 1, rows, func(c timers.Config) int { return c.ExpireBatch }},
		{"QUEEN_KV_USAGE_EVERY_MS", 1000, day, millis(func(c timers.Config) time.Duration { return c.UsageEvery })},
	}
}

// load sets every knob to a number.
func load(t *testing.T, number func(knob) int) (*config.Config, error) {
	t.Helper()
	cleanEnv(t, "DB_POOL_SIZE", "18")
	for _, k := range knobs() {
		t.Setenv(k.name, fmt.Sprint(number(k)))
	}
	return config.Load()
}

func TestEveryKnobTakesItsLowestAndHighestValue(t *testing.T) {
	for _, number := range []func(knob) int{func(k knob) int { return k.floor }, func(k knob) int { return k.high }} {
		got, err := load(t, number)
		require.NoError(t, err)
		for _, k := range knobs() {
			require.Equal(t, number(k), k.read(got.Sweeper.Cycle), k.name)
		}
		log, lines := logtest.NewRecorder()
		got.Warn(t.Context(), log)
		require.NotContains(t, lines.String(), "raised")
	}
}

func TestEveryKnobIsRaisedToItsFloorAndSaidSo(t *testing.T) {
	got, err := load(t, func(k knob) int { return k.floor - 1 })
	require.NoError(t, err)
	log, lines := logtest.NewRecorder()
	got.Warn(t.Context(), log)
	for _, k := range knobs() {
		require.Equal(t, k.floor, k.read(got.Sweeper.Cycle), k.name)
		require.Contains(t, lines.String(), fmt.Sprintf("variable=%s requested=%d effective=%d\n", k.name, k.floor-1, k.floor))
	}
}

func TestEveryKnobBeyondItsBoundIsRefused(t *testing.T) {
	_, err := load(t, func(k knob) int { return k.high + 1 })
	for _, k := range knobs() {
		require.ErrorContains(t, err, fmt.Sprintf("%s=\"%d\": a ", k.name, k.high+1))
	}
	require.ErrorContains(t, err, fmt.Sprintf("configuration: %d problems\n", len(knobs())))
}

func TestTheRestIsReadToo(t *testing.T) {
	cleanEnv(t, "QUEEN_SWEEPER", "off", "QUEEN_SWEEPER_ISOLATE_ON_PERMANENT", "no", "QUEEN_V2_ZSTD_LEVEL", "22", "DB_POOL_SIZE", "2",
		"QUEEN_OPS_ADDR", "", "QUEEN_SERVER_ID", "s-2", "HOSTNAME", "pod-1", "QUEEN_BOOT_DB_WAIT_MS", "1", "QUEEN_SHUTDOWN_TIMEOUT_MS", "2",
		"QUEEN_MESH_PEERS", "brokers", "QUEEN_MESH_PORT", "7000", "QUEEN_BIND_ADDR", "127.0.0.1", "METRICS_FLUSH_MS", "999")
	got, err := config.Load()
	require.NoError(t, err)
	require.False(t, got.Sweeper.Enabled)
	require.False(t, got.Sweeper.Cycle.IsolateOnPermanent)
	require.Equal(t, 22, got.Sweeper.ZstdLevel)
	require.Equal(t, 2, got.Postgres.PoolSize)
	require.Empty(t, got.Ops.Addr, "an empty address switches the listener off")
	require.Equal(t, worker.Process{ServerID: "s-2", BootDBWait: time.Millisecond, ShutdownTimeout: 2 * time.Millisecond}, got.Process)
	require.Equal(t, hints.Config{
		Enabled: true, Peers: "brokers", Port: 7000, BindAddr: "127.0.0.1", Heartbeat: time.Second, DeadThreshold: 5 * time.Second,
	}, got.Mesh)
	require.Equal(t, time.Second, got.Metrics.Flush)
}

func TestWhatDoesNotGoTogetherIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		env  []string
		want string // empty: it goes
	}{
		"sleeps in order": {[]string{"QUEEN_SWEEPER_MIN_SLEEP_MS", "7", "QUEEN_SWEEPER_MAX_SLEEP_MS", "7", "QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS", "7"}, ""},
		"least beyond most": {
			[]string{"QUEEN_SWEEPER_MIN_SLEEP_MS", "1001"},
			`QUEEN_SWEEPER_MIN_SLEEP_MS="1001": at most QUEEN_SWEEPER_MAX_SLEEP_MS (1000) is allowed`,
		},
		"most beyond idle": {
			[]string{"QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS", "999"},
			`QUEEN_SWEEPER_MAX_SLEEP_MS="1000": at most QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS (999) is allowed`,
		},
		"empty claims in order": {[]string{"QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS", "200"}, ""},
		"empty claims reversed": {
			[]string{"QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS", "201"},
			`QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS="201": at most QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS (200) is allowed`,
		},
		"backoffs in order": {[]string{"QUEEN_SWEEPER_BACKOFF_MAX_MS", "1000"}, ""},
		"backoffs reversed": {
			[]string{"QUEEN_SWEEPER_BACKOFF_MAX_MS", "999"},
			`QUEEN_SWEEPER_BACKOFF_MIN_MS="1000": at most QUEEN_SWEEPER_BACKOFF_MAX_MS (999) is allowed`,
		},
		"fires that leave a connection": {[]string{"QUEEN_SWEEPER_PARALLELISM", "7"}, ""},
		"fires that take all connections": {
			[]string{"QUEEN_SWEEPER_PARALLELISM", "8"},
			`QUEEN_SWEEPER_PARALLELISM="8": less than DB_POOL_SIZE (8), so that probes have a connection, is allowed`,
		},
		"compression": {
			[]string{"QUEEN_V2_ZSTD_LEVEL", "23"},
			`QUEEN_V2_ZSTD_LEVEL="23": a whole number between 1 and 22 is allowed`,
		},
		"switch": {[]string{"QUEEN_SWEEPER", "maybe"}, `QUEEN_SWEEPER="maybe": true/false`},
	} {
		t.Run(name, func(t *testing.T) {
			cleanEnv(t, tc.env...)
			_, err := config.Load()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, "configuration: 1 problem\n")
		})
	}
}

func TestShowMasksSecretsAndWarnNamesMistakes(t *testing.T) {
	cleanEnv(t, "PG_PASSWORD", "letmein", "QUEEN_SYNC_SECRET", "sesame", "QUEEN_MESH_PEERS", "brokers",
		"QUEEN_SWEEPER_SHARDS", "16", "QUEEN_SWEEPER_LEASE_MS", "29999", "QUEEN_TEST_LONG", "1")
	got, err := config.Load()
	require.NoError(t, err)
	log, lines := logtest.NewRecorder()
	got.Show(t.Context(), log)
	got.Warn(t.Context(), log)
	for _, secret := range []string{"letmein", "sesame", "QUEEN_TEST_LONG", "open to everybody"} {
		require.NotContains(t, lines.String(), secret)
	}
	for _, want := range []string{
		`msg="config: server" QUEEN_SERVER_ID=queen-`,
		`msg="config: operations" QUEEN_OPS_ADDR=:6642`,
		`DB_POOL_SIZE=8`,
		`msg="config: sweeper" QUEEN_SWEEPER=true QUEEN_SWEEPER_MIN_SLEEP_MS=5 QUEEN_SWEEPER_MAX_SLEEP_MS=1000 `,
		`QUEEN_KV_EXPIRE_EVERY_MS=1000 QUEEN_KV_EXPIRE_BATCH=1000 QUEEN_KV_USAGE_EVERY_MS=300000 QUEEN_V2_ZSTD_LEVEL=3`,
		`msg="config: mesh" `, `QUEEN_SYNC_SECRET="<set:6 chars>"`, `on=true`,
		`level=WARN msg="environment variable is not read" variable=QUEEN_SWEEPER_SHARDS`,
		`variable=QUEEN_SWEEPER_LEASE_MS lease=29.999s statement_timeout=30s`,
	} {
		require.Contains(t, lines.String(), want)
	}
}

func TestWarnIsSilentAboutDefaultsAndSpeaksOfAnOpenPool(t *testing.T) {
	cleanEnv(t)
	got, err := config.Load()
	require.NoError(t, err)
	log, lines := logtest.NewRecorder()
	got.Warn(t.Context(), log)
	require.Empty(t, lines.String())
	got.Mesh.Peers = "brokers"
	got.Warn(t.Context(), log)
	require.Contains(t, lines.String(), "the hint pool is open to everybody")
}

func TestTheReadmeDescribesEveryVariable(t *testing.T) {
	t.Parallel()
	configtest.Documented(t, "../../../../README.md", &config.Config{})
}
