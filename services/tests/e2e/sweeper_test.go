package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	// sweeping is far beyond what a cycle takes to come round.
	sweeping = 20 * time.Second

	// sweeperMemory is the most resident memory of an idle sweeper.
	sweeperMemory = 40 << 20
)

// scheduleInDatabase schedules one timer for now where no broker sees it.
func scheduleInDatabase(t *testing.T, db *harness.Database, q, key string) {
	t.Helper()
	db.Exec(t, `SELECT queen.log_timers_apply_v1(jsonb_build_array(jsonb_build_object('op', 'schedule', 'queue', $1::TEXT, 'timerKey', $2::TEXT,
		'partition', 'p', 'delayMs', 0, 'txn', $2::TEXT, 'payload', encode('{"n":1}', 'base64'))), '00000000-0000-0000-0000-000000000001', NULL)`, q, key)
}

// expireInDatabase writes one key that has expired.
func expireInDatabase(t *testing.T, db *harness.Database, key string) {
	t.Helper()
	db.Exec(t, `INSERT INTO queen.kv (namespace, key, value, version, expires_at)
		VALUES ('ns', $1, '1', nextval('queen.kv_version_seq'), now() - interval '1 minute')`, key)
}

func keys(t *testing.T, db *harness.Database) int {
	t.Helper()
	return harness.Value[int](t, db, `SELECT count(*) FROM queen.kv`)
}

func TestSweeperFiresAndPrunes(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	s := harness.StartSweeper(t, b.DB, "METRICS_FLUSH_MS=1000")
	q := queueName(t)
	expireInDatabase(t, b.DB, "gone")
	scheduleInDatabase(t, b.DB, q, "reminder")
	harness.Eventually(t, sweeping, "the key is pruned", func() bool { return keys(t, b.DB) == 0 })
	m := b.Pop(t, q, "wait=true&timeout=20000").Messages
	require.Len(t, m, 1)
	require.Equal(t, "reminder", m[0].TransactionID)
	require.JSONEq(t, `{"n":1}`, string(m[0].Data))
	require.Equal(t, 1.0, s.Metric(t, `queen_timers_fired_total{result="fired"}`))
	harness.Eventually(t, sweeping, "the process has told of itself", func() bool {
		return harness.Value[bool](t, b.DB, `SELECT EXISTS (SELECT 1 FROM queen.system_metrics WHERE service = 'sweeper' AND hostname = $1)`,
			strings.TrimPrefix(s.URL, "http://"))
	})
	s.Terminate(t)
	require.NotContains(t, s.Log(), "level=ERROR")
}

// TestFiredTimerWakesAParkedPopThroughThePool has the sweeper and every broker joined.
func TestFiredTimerWakesAParkedPopThroughThePool(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Sweepers: 2})
	q := queueName(t)
	popped := make(chan harness.Popped, 1)
	go func() { popped <- stage.Pop(t, q, "wait=true&timeout=20000") }()
	scheduleInDatabase(t, stage.DB, q, "reminder")
	require.Len(t, (<-popped).Messages, 1)
	harness.Eventually(t, sweeping, "the brokers were told", func() bool {
		const pushed = `queen_mesh_hints_sent_total{kind="pushed"}`
		return stage.Sweepers[0].Metric(t, pushed)+stage.Sweepers[1].Metric(t, pushed) > 0
	})
}

func TestRunOnceSweepsAtOnce(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	q := queueName(t)
	scheduleInDatabase(t, b.DB, q, "one")
	scheduleInDatabase(t, b.DB, q, "two")
	expireInDatabase(t, b.DB, "gone")
	end := harness.Sweep(t, b.DB, nil, "run-once", "--json")
	require.Zero(t, end.Code, "%+v", end)
	var report struct {
		Timers struct{ Due, Claimed, Fired int }
		Keys   struct{ Pruned int }
	}
	require.NoError(t, json.Unmarshal([]byte(end.Stdout), &report), end.Stdout)
	require.Equal(t, []int{2, 2, 2, 1}, []int{report.Timers.Due, report.Timers.Claimed, report.Timers.Fired, report.Keys.Pruned})
	require.Len(t, b.Pop(t, q, "batch=10").Messages, 2)

	end = harness.Sweep(t, b.DB, nil, "run-once")
	require.Zero(t, end.Code, "%+v", end)
	require.Contains(t, end.Stdout, "\nNothing was fired or pruned.")
}

func TestSweeperWaitsForTheSchema(t *testing.T) {
	t.Parallel()
	db := harness.NewDatabase(t)
	// Waiting for a schema is not bounded by the wait for the server.
	s := harness.LaunchSweeper(t, db, "QUEEN_BOOT_DB_WAIT_MS=1")
	harness.Eventually(t, sweeping, "it says what it waits for", func() bool {
		ready, why := s.Ready(t)
		require.False(t, ready)
		return strings.Contains(why, "the schema is not ready")
	})
	require.Equal(t, http.StatusOK, s.Get(t, "/live").Status)
	harness.Migrate(t, db)
	harness.Eventually(t, sweeping, "it is ready", func() bool {
		ready, _ := s.Ready(t)
		return ready
	})
	end := harness.Sweep(t, db, []string{"QUEEN_SWEEPER_LEASE_MS=long"}, "run-once")
	require.Equal(t, 1, end.Code)
	require.Contains(t, end.Stderr, `QUEEN_SWEEPER_LEASE_MS="long": a whole number of milliseconds`)
}

func TestSweeperSwitchedOffLeavesThingsAsTheyAre(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	expireInDatabase(t, b.DB, "gone")
	scheduleInDatabase(t, b.DB, queueName(t), "reminder")
	s := harness.StartSweeper(t, b.DB, "QUEEN_SWEEPER=false")
	require.Contains(t, s.Log(), "the sweeper is switched off: timers wait, and expired keys are not pruned")
	s.Terminate(t)
	require.Equal(t, 1, keys(t, b.DB))
	require.Equal(t, 1, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.log_timers`))
}

func TestIdleSweeperUsesLittleMemory(t *testing.T) {
	t.Parallel()
	if harness.Race() {
		t.Skip("the race detector needs memory of its own")
	}
	b := harness.Start(t)
	s := harness.StartSweeper(t, b.DB)
	harness.Eventually(t, sweeping, "some cycles are made", func() bool { return s.Metric(t, "queen_sweeper_cycles_total") >= 5 })
	used := s.PeakMemory(t)
	t.Logf("%d MiB", used>>20)
	require.Less(t, used, int64(sweeperMemory))
}
