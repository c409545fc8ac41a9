package retention_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// bench is a database of its own, whose statements are traced.
type bench struct {
	t     *testing.T
	db    *pgdb.DB
	store *store.Store
	trace *trace
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, trace: &trace{}}
	db, err := pgdb.Open(t.Context(), pgtest.NewConfig(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = b.trace })
	require.NoError(t, err)
	t.Cleanup(db.Close)
	b.db, b.store = db, store.New(db)
	return b
}

// replica is one more instance over the database.
func (b *bench) replica(cfg retention.Config) *retention.Retention {
	b.t.Helper()
	r, err := retention.New(cfg, retention.Deps{Store: b.store, Log: logtest.New(b.t), Meter: noop.Meter{}})
	require.NoError(b.t, err)
	return r
}

// once makes one cycle that must not fail.
func (b *bench) once(cfg retention.Config) retention.Report {
	b.t.Helper()
	report, err := b.replica(cfg).Once(b.t.Context())
	require.NoError(b.t, err)
	return report
}

// run starts replicas; they end with the returned function.
func (b *bench) run(replicas int, cfg retention.Config) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var running sync.WaitGroup
	for range replicas {
		r := b.replica(cfg)
		running.Go(func() { _ = r.Run(ctx) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

func (b *bench) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&n)
	}))
	return n
}

func (b *bench) configure(queue, options string) {
	b.t.Helper()
	_, err := b.store.Configure(b.t.Context(), store.DefaultTenant(), queue, json.RawMessage(options), false)
	require.NoError(b.t, err)
}

// push stores segments of ten messages in a lane.
func (b *bench) push(queue, lane string, segments int) (pid uuid.UUID) {
	b.t.Helper()
	for range segments {
		s := store.PushSegment{
			Tenant: store.DefaultTenant(), Queue: queue, Partition: lane,
			Count: 10, Hashes: make([]byte, 160), Blob: make([]byte, 100), Verified: store.VerifiedMinted,
		}
		_, _ = rand.Read(s.Hashes) // never fails
		verdicts, err := b.store.PushBundle(b.t.Context(), []store.PushSegment{s}, store.WaitForLocks)
		require.NoError(b.t, err)
		require.Equal(b.t, store.PushQueued, verdicts[0].Status)
		pid = verdicts[0].PartitionID
	}
	return pid
}

// age makes everything that a queue holds older.
func (b *bench) age(queue string, by time.Duration) {
	b.t.Helper()
	const lanes = `(SELECT p.id FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1)`
	for _, set := range []string{
		`UPDATE queen.log_segments SET created_at = created_at - $2 * interval '1 s' WHERE partition_id IN ` + lanes,
		`UPDATE queen.log_txns SET created_at = created_at - $2 * interval '1 s' WHERE partition_id IN ` + lanes,
		`UPDATE queen.log_partitions SET created_at = created_at - $2 * interval '1 s', last_write_at = last_write_at - $2 * interval '1 s',
			oldest_live_at = oldest_live_at - $2 * interval '1 s', oldest_txn_at = oldest_txn_at - $2 * interval '1 s' WHERE id IN ` + lanes,
	} {
		b.exec(set, queue, by.Seconds())
	}
}

// consume puts the cursor of a group behind so many segments of a lane.
func (b *bench) consume(pid uuid.UUID, group string, segments int) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = excluded.committed`, pid, group, 10*segments-1)
}

func (b *bench) segments(pid uuid.UUID) int64 {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM queen.log_segments WHERE partition_id = $1`, pid)
}

func (b *bench) sidecar(pid uuid.UUID) int64 {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, pid)
}

// trace notes the statements of sessions as they begin.
type trace struct {
	mu         sync.Mutex
	statements []statement
}

type statement struct {
	backend uint32
	sql     string
	at      time.Time
}

func (tr *trace) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.statements = append(tr.statements, statement{backend: conn.PgConn().PID(), sql: data.SQL, at: time.Now()})
	return ctx
}

func (tr *trace) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (tr *trace) forget() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.statements = nil
}

// of are the statements that contain a text.
func (tr *trace) of(text string) (out []statement) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, s := range tr.statements {
		if strings.Contains(s.sql, text) {
			out = append(out, s)
		}
	}
	return out
}

func TestPhasesOnADatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("aged", `{"retentionEnabled": true, "retentionSeconds": 3600}`)
	b.configure("consumed", `{"retentionEnabled": true, "completedRetentionSeconds": 3600}`)
	b.configure("evicted", `{"maxWaitTimeSeconds": 3600}`)
	lanes := map[string]uuid.UUID{}
	for _, queue := range []string{"aged", "consumed", "evicted", "kept"} {
		lanes[queue] = b.push(queue, "p", 5)
		b.age(queue, 2*time.Hour)
		b.push(queue, "p", 2)
	}
	b.consume(lanes["consumed"], "fast", 7)
	b.consume(lanes["consumed"], "slow", 3)
	unread := b.push("consumed", "unread", 4)
	b.age("consumed", 2*time.Hour)

	planned, err := b.replica(retention.Config{}).DryRun(t.Context())
	require.NoError(t, err)
	report := b.once(retention.Config{BatchSize: 2})
	for queue, left := range map[string]int64{"aged": 2, "consumed": 4, "evicted": 2, "kept": 7} {
		require.Equal(t, left, b.segments(lanes[queue]), queue)
	}
	require.EqualValues(t, 4, b.segments(unread))
	for queue, left := range map[string]int64{"aged": 2, "consumed": 0, "evicted": 2, "kept": 2} {
		require.Equal(t, left, b.sidecar(lanes[queue]), queue)
	}
	kept := report.Phase(retention.PhaseRetention)
	require.EqualValues(t, 8, kept.Segments)
	require.EqualValues(t, 80, kept.Messages)
	require.EqualValues(t, 800, kept.Bytes)
	require.EqualValues(t, 1, kept.Held, "the lane nobody has read")
	require.EqualValues(t, 5, report.Phase(retention.PhaseEviction).Segments)
	require.EqualValues(t, 5+7+4+5+5, report.Phase(retention.PhaseTxns).Rows)
	for _, name := range []string{retention.PhaseRetention, retention.PhaseEviction} {
		require.Equal(t, report.Phase(name).Segments, planned.Phase(name).Segments)
		require.Equal(t, report.Phase(name).Messages, planned.Phase(name).Messages)
		require.Equal(t, report.Phase(name).Bytes, planned.Phase(name).Bytes)
	}
	require.EqualValues(t, 3+2+3, b.count(`SELECT count(*) FROM queen.retention_history`), "one for each step of two segments")

	b.trace.forget()
	report = b.once(retention.Config{})
	require.False(t, report.Deleted())
	require.Empty(t, b.trace.of("_step_v1"), "nothing is due but what is held")
}

func TestCleanupPurgeAndWalkOnADatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"retentionEnabled": true, "retentionSeconds": 60}`)
	emptied := b.push("q", "emptied", 3)
	b.age("q", 40*24*time.Hour)
	b.push("young", "p", 1)
	wrong := b.push("q", "wrong", 2)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = NULL WHERE id = $1`, wrong)
	b.exec(`INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type, executed_at)
		VALUES (gen_random_uuid(), 1, 'retention', now() - interval '91 days')`)

	report := b.once(retention.Config{Cleanup: true})
	require.EqualValues(t, 3, report.Phase(retention.PhaseRetention).Segments)
	require.EqualValues(t, 1, report.Phase(retention.PhaseCleanup).Rows, "what a phase has just emptied goes in the same cycle")
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions WHERE id = $1`, emptied))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.retention_history WHERE executed_at < now() - interval '90 days'`))
	require.EqualValues(t, 1, report.Phase(retention.PhaseMetrics).Rows)
	require.EqualValues(t, 1, report.Phase(retention.PhaseWalk).Rows)

	b.age("q", time.Hour)
	report = b.once(retention.Config{Cleanup: true})
	require.Zero(t, b.segments(wrong), "repaired, and so found")
	require.Empty(t, report.Phase(retention.PhaseCleanup).Lanes, "within the minute")
}

func TestLockedLaneOnADatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"retentionEnabled": true, "retentionSeconds": 60}`)
	locked, free := b.push("q", "locked", 1), b.push("q", "free", 1)
	b.age("q", time.Hour)
	require.NoError(t, b.db.Do(t.Context(), "hold a lane", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, locked); err != nil {
				return err
			}
			report := b.once(retention.Config{})
			require.EqualValues(t, 1, report.Phase(retention.PhaseRetention).TimedOut)
			return nil
		})
	}))
	require.EqualValues(t, 1, b.segments(locked))
	require.Zero(t, b.segments(free))
	b.once(retention.Config{})
	require.Zero(t, b.segments(locked))
}

// TestCycleOnADatabaseThatRefuses has lanes that fail, a walk that cannot go on, and
// a leader that is not bothered.
func TestCycleOnADatabaseThatRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"retentionEnabled": true, "retentionSeconds": 60}`)
	b.configure("evicted", `{"maxWaitTimeSeconds": 60}`)
	const bad = 15
	for i := range bad {
		b.push("q", fmt.Sprint("bad", i), 1)
	}
	b.exec(`UPDATE queen.log_segments SET blob = 'bad'`)
	free, evicted := b.push("q", "free", 1), b.push("evicted", "p", 1)
	b.age("q", time.Hour)
	b.age("evicted", time.Hour)
	b.exec(`CREATE FUNCTION public.refuse() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;`)
	b.exec(`CREATE TRIGGER refuse BEFORE DELETE ON queen.log_segments FOR EACH ROW WHEN (OLD.blob = 'bad') EXECUTE FUNCTION public.refuse()`)
	b.exec(`INSERT INTO queen.system_state (key, value) VALUES ('maintenance_position:retention_walk_deep', '"nowhere"')`)
	b.exec(`INSERT INTO queen.retention_history (retention_type, executed_at) SELECT 'retention', now() - interval '91 days' FROM generate_series(1, 1000)`)

	report, err := b.replica(retention.Config{BatchSize: 100}).Once(t.Context())
	require.ErrorContains(t, err, "refused")
	require.ErrorContains(t, err, "walk by retention_walk_deep")
	require.Zero(t, b.segments(free))
	require.Zero(t, b.segments(evicted))
	require.EqualValues(t, bad, report.Phase(retention.PhaseRetention).Failed)
	require.EqualValues(t, 1000, report.Phase(retention.PhaseMetrics).Rows)
	require.EqualValues(t, 1, report.Phase(retention.PhaseWalk).Failed)

	b.exec(`DROP TRIGGER refuse ON queen.log_segments`)
	b.exec(`DELETE FROM queen.system_state WHERE key LIKE 'maintenance_clock:%'`)
	report = b.once(retention.Config{})
	require.EqualValues(t, bad, report.Phase(retention.PhaseRetention).Segments)
	require.NotZero(t, report.Phase(retention.PhaseWalk).Lanes)
}

func TestStandbyAndDryRunBesideALeader(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"retentionEnabled": true, "retentionSeconds": 60}`)
	pid := b.push("q", "p", 3)
	b.age("q", time.Hour)
	leader, err := b.store.Maintenance(t.Context())
	require.NoError(t, err)
	defer leader.Close(t.Context())
	got, err := leader.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, got)

	_, err = b.replica(retention.Config{}).Once(t.Context())
	require.ErrorIs(t, err, retention.ErrNotLeader)
	report, err := b.replica(retention.Config{}).DryRun(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, report.Phase(retention.PhaseRetention).Segments)
	require.EqualValues(t, 3, b.segments(pid))
	require.Empty(t, b.trace.of("_step_v1"))
}

// TestReplicasNeverOverlap follows the statements of several replicas over one
// database: between the plan and the release of one there is none of another.
func TestReplicasNeverOverlap(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{2, 3} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.configure("q", `{"retentionEnabled": true, "retentionSeconds": 60}`)
			const lanes, segments = 20, 10
			for i := range lanes {
				b.push("q", fmt.Sprint(i), segments)
			}
			b.age("q", time.Hour)
			b.trace.forget()
			stop := b.run(replicas, retention.Config{Interval: 20 * time.Millisecond, BatchSize: 1, Cleanup: true})
			require.Eventually(t, func() bool { return len(b.trace.of("pg_advisory_unlock")) > 40 }, patience, 10*time.Millisecond)
			leaders := b.trace.leaders(t) // the end may cut cycles off, so before it
			stop()
			require.Greater(t, len(leaders), 1, "only one replica ever led")
			require.Zero(t, b.count(`SELECT count(*) FROM queen.log_segments`))
			require.EqualValues(t, 10*lanes*segments, b.count(`SELECT sum(messages_deleted) FROM queen.retention_history`), "each once")
			require.Eventually(t, func() bool {
				return b.count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database =
					(SELECT oid FROM pg_database WHERE datname = current_database())`) == 0
			}, patience, 10*time.Millisecond, "a lock was kept")
		})
	}
}

// leaders fails the test when the statements of two leaders overlap, and returns
// who led.
func (tr *trace) leaders(t *testing.T) map[uint32]int {
	t.Helper()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	led := map[uint32]int{}
	var leader uint32
	for _, s := range tr.statements {
		switch {
		case strings.Contains(s.sql, "pg_try_advisory_lock"), strings.Contains(s.sql, "set_config('idle_session_timeout', $1"),
			strings.HasPrefix(s.sql, "SET "), !strings.Contains(s.sql, "queen.") && !strings.Contains(s.sql, "pg_advisory_unlock"):
			continue // of one that does not lead yet, or of the test
		case strings.Contains(s.sql, "log_retention_plan_v1"):
			require.Zero(t, leader, "a cycle began before the end of another")
			leader = s.backend
			led[leader]++
		case strings.Contains(s.sql, "pg_advisory_unlock"):
			require.Equal(t, leader, s.backend)
			leader = 0
		default:
			require.Equal(t, leader, s.backend, s.sql)
		}
	}
	return led
}

// guard has the database note whether whoever deletes holds the leader's lock.
const guard = `
	CREATE TABLE public.deletions (backend INT, held BOOLEAN);
	CREATE FUNCTION public.note_deletion() RETURNS TRIGGER LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.deletions SELECT pg_backend_pid(), EXISTS (SELECT FROM pg_catalog.pg_locks
			WHERE locktype = 'advisory' AND objid = 737001 AND granted AND pid = pg_backend_pid());
		RETURN NULL;
	END $$;
	CREATE TRIGGER note_deletion AFTER INSERT ON queen.retention_history FOR EACH ROW EXECUTE FUNCTION public.note_deletion()`

const terminateLeader = `SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objid = 737001 AND granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// TestLeadersThatAreCutOff terminates whoever leads, again and again, while three
// replicas work.
func TestLeadersThatAreCutOff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(guard)
	b.configure("q", `{"retentionEnabled": true, "retentionSeconds": 60}`)
	const lanes, segments = 20, 50
	for i := range lanes {
		b.push("q", fmt.Sprint(i), segments)
	}
	b.age("q", time.Hour)
	stop := b.run(3, retention.Config{Interval: 20 * time.Millisecond, BatchSize: 1})
	defer stop()
	for terminated := int64(0); terminated < 8; {
		before := b.count(`SELECT count(*) FROM public.deletions`)
		require.Eventually(t, func() bool { return b.count(`SELECT count(*) FROM public.deletions`) > before }, patience, time.Millisecond)
		terminated += b.count(terminateLeader)
	}
	require.Eventually(t, func() bool { return b.count(`SELECT count(*) FROM queen.log_segments`) == 0 }, patience, 10*time.Millisecond)
	stop()
	require.Zero(t, b.count(`SELECT count(*) FROM public.deletions WHERE NOT held`), "somebody deleted without the lock")
	require.EqualValues(t, lanes*segments, b.count(`SELECT count(*) FROM public.deletions`))
	require.EqualValues(t, 10*lanes*segments, b.count(`SELECT sum(messages_deleted) FROM queen.retention_history`), "each once")
}

// TestFailoverWithinAnInterval cuts the connection of a leader in the middle of its
// cycle; the standby makes the next one.
func TestFailoverWithinAnInterval(t *testing.T) {
	t.Parallel()
	const interval = time.Second
	b := setup(t)
	leader, err := b.store.Maintenance(t.Context())
	require.NoError(t, err)
	defer leader.Close(context.WithoutCancel(t.Context()))
	got, err := leader.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, got)
	stop := b.run(1, retention.Config{Interval: interval})
	defer stop()
	require.Eventually(t, func() bool { return len(b.trace.of("pg_try_advisory_lock")) >= 3 }, patience, 10*time.Millisecond)
	require.Empty(t, b.trace.of("log_retention_plan_v1"))
	cut := time.Now()
	require.EqualValues(t, 1, b.count(terminateLeader))
	require.Eventually(t, func() bool { return len(b.trace.of("log_retention_plan_v1")) > 0 }, patience, 10*time.Millisecond)
	took := b.trace.of("log_retention_plan_v1")[0].at.Sub(cut)
	require.Less(t, took, interval+time.Second, "a second for a busy machine")
	_, err = leader.Plan(t.Context())
	require.Error(t, err, "the old one can do nothing any more")
}

// TestSilentLeaderIsReplaced has a leader that says nothing more, as one that was
// stopped or whose packets vanish.
func TestSilentLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	leader, err := b.store.Maintenance(t.Context())
	require.NoError(t, err)
	defer leader.Close(context.WithoutCancel(t.Context()))
	got, err := leader.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, got)
	stop := b.run(1, retention.Config{Interval: 500 * time.Millisecond})
	defer stop()
	require.Eventually(t, func() bool { return len(b.trace.of("log_retention_plan_v1")) > 0 }, 20*time.Second, 50*time.Millisecond)
}

func TestEvictionAtItsInstantOnADatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"maxWaitTimeSeconds": 1}`)
	stop := b.run(1, retention.Config{Interval: 2 * time.Second})
	defer stop()
	require.Eventually(t, func() bool { return len(b.trace.of("log_retention_plan_v1")) > 0 }, patience, 10*time.Millisecond)
	pushed := time.Now()
	pid := b.push("q", "p", 1)
	require.Eventually(t, func() bool { return b.segments(pid) == 0 }, patience, 10*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(pushed), time.Second)
}
