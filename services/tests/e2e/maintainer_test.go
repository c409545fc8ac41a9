package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	// maintenance is far beyond what a cycle takes to come round.
	maintenance = 20 * time.Second

	// maintainerMemory is the most resident memory of a maintainer.
	maintainerMemory = 40 << 20

	leaderLock = 737001
)

// keepsOneSecond deletes messages that are older than a second, read or not.
const keepsOneSecond = `{"retentionEnabled":true,"retentionSeconds":1}`

// totalMessages is how many messages a queue holds, read or not.
func totalMessages(t *testing.T, b *harness.Broker, q string) int {
	t.Helper()
	a := b.Get(t, "/api/v1/resources/queues/"+q)
	require.Equal(t, http.StatusOK, a.Status, a)
	var detail struct {
		Totals struct {
			Total *int `json:"total"`
		} `json:"totals"`
	}
	a.Into(t, &detail)
	require.NotNil(t, detail.Totals.Total, a)
	return *detail.Totals.Total
}

// backdate makes what a queue holds older, in the segments and in what is remembered of
// the oldest of them.
func backdate(t *testing.T, db *harness.Database, q string, by time.Duration) {
	t.Helper()
	const lanes = `SELECT p.id FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`
	for _, sql := range []string{
		`UPDATE queen.log_segments SET created_at = created_at - $2::interval WHERE partition_id IN (` + lanes + `)`,
		`UPDATE queen.log_txns SET created_at = created_at - $2::interval WHERE partition_id IN (` + lanes + `)`,
		`UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - $2::interval,
			oldest_txn_at = oldest_txn_at - $2::interval WHERE id IN (` + lanes + `)`,
	} {
		db.Exec(t, sql, q, by)
	}
}

func leaderLocks(t *testing.T, db *harness.Database) int {
	t.Helper()
	return harness.Value[int](t, db, `SELECT count(*) FROM pg_locks
		WHERE locktype = 'advisory' AND objid = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, leaderLock)
}

func TestMaintainerDeletesWhatAConfigureAllows(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	m := harness.StartMaintainer(t, b.DB)
	kept, going := queueName(t), queueName(t)
	b.Configure(t, going, keepsOneSecond)
	b.PushEach(t, kept, "p", 3)
	b.PushEach(t, going, "p", 3)
	harness.Eventually(t, maintenance, "the messages are deleted", func() bool { return totalMessages(t, b, going) == 0 })
	require.Equal(t, 3, totalMessages(t, b, kept), "without retention nothing goes")
	b.RequireNone(t, harness.PopPath(going, ""))
	require.Equal(t, 3, harness.Value[int](t, b.DB, `SELECT sum(messages_deleted) FROM queen.retention_history WHERE retention_type = 'retention'`))
	harness.Eventually(t, maintenance, "the sweep is logged", func() bool { return strings.Contains(m.Log(), "msg=swept") })
	require.Positive(t, m.Metric(t, `queen_retention_segments_total{phase="retention"}`))
	require.Equal(t, 1.0, m.Metric(t, "queen_retention_leader"))

	m.Terminate(t)
	require.Zero(t, leaderLocks(t, b.DB))
	b.PushEach(t, going, "p", 1)
	require.Len(t, b.Pop(t, going, "").Messages, 1)
	require.Equal(t, 3, harness.Value[int](t, b.DB, `SELECT p.last_offset FROM queen.log_partitions AS p
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, going), "offsets go on")
}

// TestMaintainerKeepsTheBooks looks at what the other jobs write.
func TestMaintainerKeepsTheBooks(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	q := queueName(t)
	b.PushEach(t, q, "p", 3)
	m := harness.StartMaintainer(t, b.DB, "STATS_INTERVAL_MS=1000", "METRICS_FLUSH_MS=1000", "RETAINED_BYTES_INTERVAL_MS=1000")
	harness.Eventually(t, maintenance, "the queue is in the statistics, with its bytes", func() bool {
		return harness.Value[bool](t, b.DB, `SELECT EXISTS (SELECT 1 FROM queen.stats AS s JOIN queen.queues AS q ON q.id = s.queue_id
			WHERE q.name = $1 AND s.stat_type = 'queue' AND s.pending_messages = 3 AND s.retained_bytes > 0)`, q)
	})
	harness.Eventually(t, maintenance, "the process has told of itself", func() bool {
		return harness.Value[bool](t, b.DB, `SELECT EXISTS (SELECT 1 FROM queen.system_metrics WHERE service = 'maintainer' AND hostname = $1)`,
			strings.TrimPrefix(m.URL, "http://"))
	})
	m.Terminate(t)
	require.NotContains(t, m.Log(), "level=ERROR")
}

// TestMaintainerWaitsForTheSchema starts it on an empty database.
func TestMaintainerWaitsForTheSchema(t *testing.T) {
	t.Parallel()
	db := harness.NewDatabase(t)
	// Waiting for a schema is not bounded by the wait for the server.
	m := harness.LaunchMaintainer(t, db, "QUEEN_BOOT_DB_WAIT_MS=1")
	harness.Eventually(t, maintenance, "it says what it waits for", func() bool {
		ready, why := m.Ready(t)
		require.False(t, ready)
		return strings.Contains(why, "the schema is not ready")
	})
	require.Equal(t, http.StatusOK, m.Get(t, "/live").Status)
	require.Equal(t, http.StatusOK, m.Get(t, "/health").Status)
	harness.Migrate(t, db)
	harness.Eventually(t, maintenance, "it is ready", func() bool {
		ready, _ := m.Ready(t)
		return ready
	})
	// For a moment the statistics may be between two statements.
	harness.Eventually(t, maintenance, "no transaction is left open", func() bool {
		return !harness.Value[bool](t, db, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle in transaction')`)
	})
}

// TestMaintainerIsUnreadyWithoutItsDatabase cuts it off after it was ready.
func TestMaintainerIsUnreadyWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	m := harness.StartMaintainer(t, s.DB)
	s.Proxy.Cut()
	harness.Eventually(t, maintenance, "it is unready", func() bool {
		ready, _ := m.Ready(t)
		return !ready
	})
	s.Proxy.Heal()
	harness.Eventually(t, maintenance, "it is ready again", func() bool {
		ready, _ := m.Ready(t)
		return ready
	})
}

func TestMaintainerRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	db := harness.NewDatabase(t)
	for _, args := range [][]string{nil, {"run-once"}} {
		r := harness.Maintain(t, db, []string{
			"RETENTION_INTERVAL=soon", "RETENTION_BATCH_SIZE=10001", "PARTITION_CLEANUP_DAYS=-1", "DB_POOL_SIZE=1", "QUEEN_OPS_ADDR=6641",
		}, args...)
		require.Equal(t, 1, r.Code)
		require.Empty(t, r.Stdout)
		require.Contains(t, r.Stderr, "maintainer: configuration: 5 problems\n")
		for _, name := range []string{"RETENTION_INTERVAL", "RETENTION_BATCH_SIZE", "PARTITION_CLEANUP_DAYS", "DB_POOL_SIZE", "QUEEN_OPS_ADDR", "soon"} {
			require.Contains(t, r.Stderr, name, "every problem is named at once")
		}
	}
}

func TestMaintainerWarnsAboutWhatItDoesNotRead(t *testing.T) {
	t.Parallel()
	r := harness.Maintain(t, harness.NewDatabase(t), []string{
		"RETENTION_PARALLELISM=4", "PARTITION_CLEANUP_DAYS=0", "QUEEN_PARTITION_CLEANUP_ENABLE=0",
		"PG_PASSWORD=tell-nobody", "PG_HOST=127.0.0.1", "PG_PORT=1", "QUEEN_BOOT_DB_WAIT_MS=1",
	})
	require.Equal(t, 1, r.Code, "the database stays away")
	require.Contains(t, r.Stderr, "variable=RETENTION_PARALLELISM")
	require.Contains(t, r.Stderr, "variable=PARTITION_CLEANUP_DAYS requested=0 effective=1")
	require.Contains(t, r.Stderr, "did_you_mean=QUEEN_PARTITION_CLEANUP_ENABLED")
	require.Contains(t, r.Stderr, `msg="config: jobs"`)
	require.NotContains(t, r.Stderr, "tell-nobody")
}

func TestRunOncePrintsWhatItDid(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	q, evicting := queueName(t), queueName(t)
	b.Configure(t, q, keepsOneSecond)
	b.Configure(t, evicting, `{"maxWaitTimeSeconds":1}`)
	b.PushEach(t, q, "p", 3)
	b.PushTogether(t, evicting, "p", 4)
	backdate(t, b.DB, q, time.Hour)
	backdate(t, b.DB, evicting, time.Hour)

	dry := harness.Maintain(t, b.DB, nil, "run-once", "--dry-run")
	require.Zero(t, dry.Code, dry.Stderr)
	require.Contains(t, dry.Stdout, "Dry run, nothing was deleted. A cycle would now delete 4 segments with 7 messages")
	requireRow(t, dry.Stdout, "retention", q, "3", "3")
	require.Equal(t, 3, totalMessages(t, b, q))
	require.Equal(t, 4, totalMessages(t, b, evicting))

	done := harness.Maintain(t, b.DB, nil, "run-once")
	require.Zero(t, done.Code, done.Stderr)
	require.Contains(t, done.Stdout, "Deleted 4 segments with 7 messages")
	requireRow(t, done.Stdout, "retention", q, "3", "3")
	requireRow(t, done.Stdout, "eviction", evicting, "-", "4")
	require.Zero(t, totalMessages(t, b, q))
	require.Zero(t, totalMessages(t, b, evicting))

	idle := harness.Maintain(t, b.DB, nil, "run-once")
	require.Zero(t, idle.Code, idle.Stderr)
	require.Contains(t, idle.Stdout, "Nothing was due.")
	require.Zero(t, leaderLocks(t, b.DB))
}

// requireRow requires a row of the table of run-once.
func requireRow(t *testing.T, table, phase, queue, segments, messages string) {
	t.Helper()
	for line := range strings.Lines(table) {
		if cells := strings.Fields(line); len(cells) > 4 && cells[0] == phase && cells[1] == queue {
			require.Equal(t, []string{segments, messages}, cells[3:5], line)
			return
		}
	}
	require.Fail(t, "no such row", "%s of %s in\n%s", phase, queue, table)
}

func TestRunOnceAnswersPrograms(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	q := queueName(t)
	b.Configure(t, q, keepsOneSecond)
	b.PushEach(t, q, "p", 3)
	backdate(t, b.DB, q, time.Hour)
	r := harness.Maintain(t, b.DB, nil, "run-once", "--json")
	require.Zero(t, r.Code, r.Stderr)
	var report struct {
		Led    bool
		DryRun bool
		Phases []struct {
			Name               string
			Segments, Messages int
		}
		Queues []struct {
			Name     string
			Messages int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(r.Stdout), &report), r.Stdout)
	require.True(t, report.Led)
	require.False(t, report.DryRun)
	require.Equal(t, "retention", report.Phases[0].Name)
	require.Equal(t, 3, report.Phases[0].Segments)
	require.Equal(t, 3, report.Phases[0].Messages)
	require.Len(t, report.Queues, 1)
	require.Equal(t, q, report.Queues[0].Name)
}

// TestRunOnceLeavesTheWorkToALeader holds the lock as a leader does.
func TestRunOnceLeavesTheWorkToALeader(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	conn, err := b.DB.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, leaderLock)
	require.NoError(t, err)
	r := harness.Maintain(t, b.DB, nil, "run-once")
	require.Equal(t, 3, r.Code, r.Stderr)
	require.Empty(t, r.Stdout)
	require.Contains(t, r.Stderr, "another maintainer is in the middle of a cycle; nothing was done")
	r = harness.Maintain(t, b.DB, nil, "run-once", "--json")
	require.Equal(t, 3, r.Code, r.Stderr)
	require.Contains(t, r.Stdout, `"led":false`)
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, leaderLock)
	require.NoError(t, err)
}

func TestRunOnceNeedsTheSchema(t *testing.T) {
	t.Parallel()
	r := harness.Maintain(t, harness.NewDatabase(t), []string{"QUEEN_BOOT_DB_WAIT_MS=1"}, "run-once")
	require.Equal(t, 1, r.Code)
	require.Contains(t, r.Stderr, "check schema (brokers or `broker migrate` apply it)")
}

// TestMaintainerStopsInTheMiddleOfAStep asks it to stop while a step waits for a
// partition.
func TestMaintainerStopsInTheMiddleOfAStep(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	q := queueName(t)
	b.Configure(t, q, keepsOneSecond)
	b.PushEach(t, q, "p", 3)
	backdate(t, b.DB, q, time.Hour)
	tx, err := b.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM queen.log_partitions FOR UPDATE`)
	require.NoError(t, err)
	m := harness.StartMaintainer(t, b.DB)
	harness.Eventually(t, maintenance, "a step waits", func() bool { return waitingStatements(t, b) > 0 })
	began := time.Now()
	m.Terminate(t)
	require.Less(t, time.Since(began), 10*time.Second)
	require.Zero(t, leaderLocks(t, b.DB))
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 3, totalMessages(t, b, q))
}

// TestMaintainerStaysSmall looks at the most memory it has had, after many cycles
// over a hundred partitions and some reads of its metrics.
func TestMaintainerStaysSmall(t *testing.T) {
	t.Parallel()
	if harness.Race() {
		t.Skip("the race detector needs memory of its own")
	}
	b := harness.Start(t)
	m := harness.StartMaintainer(t, b.DB, "RETENTION_INTERVAL=10", "STATS_INTERVAL_MS=1000", "METRICS_FLUSH_MS=1000")
	if m.PeakMemory(t) == 0 {
		t.Skip("needs /proc")
	}
	q := queueName(t)
	b.Configure(t, q, keepsOneSecond)
	for _, lane := range lanes(100) {
		b.PushTogether(t, q, lane, 10)
	}
	harness.Eventually(t, maintenance, "the messages are deleted", func() bool {
		m.Get(t, "/metrics")
		return totalMessages(t, b, q) == 0
	})
	require.Less(t, m.PeakMemory(t), int64(maintainerMemory))
}
