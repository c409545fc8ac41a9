package retention_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestPhasesFollowTheirOrder gives each phase something to do and looks at the
// order in which one session did it all.
func TestPhasesFollowTheirOrder(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	waiting := x.another(t)
	waiting.Configure(t, waiting.queue, `{"maxWaitTimeSeconds":3600}`)
	for _, c := range []*cell{x, waiting} {
		for i := range 3 {
			c.PushEach(t, c.queue, fmt.Sprintf("lane-%d", i), 2)
		}
		abandonLanes(t, c.DB, c.queue)
	}
	x.DB.Exec(t, `INSERT INTO queen.retention_history (retention_type, executed_at) VALUES ('retention', now() - interval '91 days')`)
	traceChanges(t, x.DB)
	x.cycle(t)

	all := changes(t, x.DB, "")
	require.NotEmpty(t, all)
	var phases []string
	for _, c := range all {
		require.Equal(t, all[0].Session, c.Session, "one connection does it all")
		if c.What == "DELETE log_segments" {
			continue // its history row follows
		}
		if phase := c.phase(); !slices.Contains(phases, phase) {
			phases = append(phases, phase)
		} else {
			require.Equal(t, phases[len(phases)-1], phase, "no phase is entered twice")
		}
	}
	require.Equal(t, []string{"rules", "sidecar", "max wait", "cleanup", "metrics"}, phases)
	requireOneLeader(t, x.DB)
	requireLockFree(t, x.DB)
}

// requireLockFree requires that the leader's lock can be had.
func requireLockFree(t *testing.T, db *harness.Database) {
	t.Helper()
	require.Empty(t, harness.Value[[]int](t, db, `SELECT COALESCE(array_agg(pid), '{}') FROM (`+holder+`) AS h`))
}

// hold takes the leader's lock in a session of the test until the answer is called.
func hold(t *testing.T, db *harness.Database) (release func()) {
	t.Helper()
	conn, err := db.Pool.Acquire(t.Context())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, leaderLock)
	require.NoError(t, err)
	return func() {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), `SELECT pg_advisory_unlock($1)`, leaderLock)
		conn.Release()
		require.NoError(t, err)
	}
}

// TestReplicaWithoutTheLockSkipsTheCycle holds the lock elsewhere for some time.
func TestReplicaWithoutTheLockSkipsTheCycle(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600,"maxWaitTimeSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 2, longAgo)
	release := hold(t, x.DB)
	require.NotZero(t, runOnce(t, x.DB).Code, "one cycle was asked for and not made")
	harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=100")
	select { // some cycles are skipped, also turns of the eviction
	case <-t.Context().Done():
	case <-time.After(1500 * time.Millisecond):
	}
	x.requireStart(t, 0)
	require.EqualValues(t, 0, x.marks(t).txns)
	release()
	harness.Eventually(t, 5*time.Second, "the next cycle sweeps", func() bool { return x.marks(t).start == 3 })
}

// TestLockIsReleasedOnEveryExit ends a cycle by its end, by an error, and by a
// signal in its middle.
func TestLockIsReleasedOnEveryExit(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	for i := range 100 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%d", i), 1)
	}
	x.cycle(t)
	requireLockFree(t, x.DB)

	x.DB.Exec(t, `ALTER FUNCTION queen.log_retention_plan_v1() RENAME TO away`)
	require.NotZero(t, runOnce(t, x.DB).Code)
	requireLockFree(t, x.DB)
	x.DB.Exec(t, `ALTER FUNCTION queen.away() RENAME TO log_retention_plan_v1`)

	ageAll(t, x.DB, x.queue)
	slowSteps(t, x.DB, 50*time.Millisecond)
	m := harness.StartMaintainer(t, x.DB)
	swept := func() int { return harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.retention_history`) }
	harness.Eventually(t, 10*time.Second, "the cycle is under way", func() bool { return swept() > 2 })
	m.Terminate(t)
	requireLockFree(t, x.DB)
	require.Less(t, swept(), 100, "it did not wait for the end of the backlog")
	requireSound(t, x.DB)
}

// slowSteps makes every step that deletes messages take time.
func slowSteps(t *testing.T, db *harness.Database, pause time.Duration) {
	t.Helper()
	db.Exec(t, fmt.Sprintf(`CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS $f$ BEGIN PERFORM pg_sleep(%g); RETURN NULL; END $f$`, pause.Seconds()))
	db.Exec(t, `CREATE TRIGGER slow AFTER INSERT ON queen.retention_history FOR EACH STATEMENT EXECUTE FUNCTION public.slow()`)
}

// TestCadenceIsMeasuredFromTheStart has one lane fall due in each interval and
// makes its step take half of it, or more than all of it. A pause after each
// cycle would add up.
func TestCadenceIsMeasuredFromTheStart(t *testing.T) {
	t.Parallel()
	const interval, cycles = 500 * time.Millisecond, 9
	for name, c := range map[string]struct {
		step     time.Duration
		from, to time.Duration // between the starts of two cycles, on average
	}{
		"half an interval": {250 * time.Millisecond, 480 * time.Millisecond, 680 * time.Millisecond},
		"one and a half":   {750 * time.Millisecond, 750 * time.Millisecond, 1100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := own(t)
			x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
			dueInTurn(t, x, cycles, max(interval, c.step))
			slowSteps(t, x.DB, c.step)
			harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=500")
			harness.Eventually(t, 30*time.Second, "all are gone", func() bool {
				return harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.retention_history`) == cycles
			})
			gap := harness.Value[time.Duration](t, x.DB, `SELECT (max(executed_at) - min(executed_at)) / (count(*) - 1) FROM queen.retention_history`)
			require.Greater(t, gap, c.from)
			require.Less(t, gap, c.to)
		})
	}
}

// dueInTurn pushes one message to each of n lanes, of which the retention of an
// hour lets one go after every step of time, the first one in 2 s.
func dueInTurn(t *testing.T, x *cell, n int, every time.Duration) {
	t.Helper()
	for i := range n {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%02d", i), 1)
	}
	for i := range n {
		pid := x.DB.PartitionID(t, x.queue, fmt.Sprintf("lane-%02d", i))
		due := 2*time.Second + time.Duration(i)*every
		age := harness.Value[time.Duration](t, x.DB, `SELECT now() - created_at FROM queen.log_segments WHERE partition_id = $1`, pid)
		ageLanes(t, x.DB, []string{pid}, 0, time.Hour-due-age, segments)
	}
}

// TestDefaultCadenceIsFiveSeconds sets no interval and watches two cycles.
func TestDefaultCadenceIsFiveSeconds(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	dueInTurn(t, x, 15, time.Second)
	traceChanges(t, x.DB)
	harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=") // unset
	var begins []time.Time
	harness.Eventually(t, 30*time.Second, "three cycles", func() bool {
		begins = nil
		last := time.Time{}
		for _, c := range changes(t, x.DB, "INSERT retention_history") {
			if c.At.Sub(last) > time.Second {
				begins = append(begins, c.At)
			}
			last = c.At
		}
		return len(begins) >= 3
	})
	require.InDelta(t, 5, begins[2].Sub(begins[1]).Seconds(), 0.5)
}

// logLine is one line of a maintainer's log.
type logLine map[string]any

// logged are the lines about retention, by level.
func logged(t *testing.T, m *harness.Maintainer) map[string][]logLine {
	t.Helper()
	lines := map[string][]logLine{}
	for text := range strings.Lines(m.Log()) {
		var line logLine
		if json.Unmarshal([]byte(text), &line) != nil || line["component"] != "retention" {
			continue
		}
		level, _ := line["level"].(string)
		lines[level] = append(lines[level], line)
	}
	return lines
}

// TestLogSpeaksOfCyclesThatDeleted lets a cycle delete something in each phase
// and many others nothing.
func TestLogSpeaksOfCyclesThatDeleted(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	waiting := x.another(t)
	waiting.Configure(t, waiting.queue, `{"maxWaitTimeSeconds":3600}`)
	x.push(t, 3)
	waiting.push(t, 2)
	for _, c := range []*cell{x, waiting} {
		abandonLanes(t, c.DB, c.queue)
	}
	m := harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=100", "QUEEN_LOG_JSON=true", "LOG_LEVEL=debug")
	harness.Eventually(t, 20*time.Second, "many idle cycles", func() bool { return len(logged(t, m)["DEBUG"]) >= 10 })
	lines := logged(t, m)["INFO"]
	lines = slices.DeleteFunc(lines, func(l logLine) bool { return l["segments_deleted"] == nil })
	require.Len(t, lines, 1, "an idle cycle says nothing")
	require.Contains(t, lines[0]["msg"], "swept")
	for key, want := range map[string]float64{"queues": 2, "segments_deleted": 3, "txns_purged": 5, "max_wait_evicted": 2, "partitions_deleted": 2} {
		require.Equal(t, want, lines[0][key], "%s of %v", key, lines[0])
	}
	require.Contains(t, lines[0], "elapsed_ms")
	require.Contains(t, lines[0], "metrics_purged")
	require.Empty(t, logged(t, m)["ERROR"])
	require.Empty(t, logged(t, m)["WARN"])
}

// TestFailingCycleIsReportedOnce breaks the second phase for many cycles, and
// repairs it: the connection is still good.
func TestFailingCycleIsReportedOnce(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 2, longAgo)
	x.DB.Exec(t, `ALTER FUNCTION queen.log_txns_purge_step_v1(UUID, TIMESTAMPTZ, INT) RENAME TO away`)
	m := harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=100", "QUEEN_LOG_JSON=true")
	harness.Eventually(t, 10*time.Second, "the first phase is done and the second has failed", func() bool {
		return x.marks(t).start == 3 && len(logged(t, m)["ERROR"]) > 0
	})
	for i := range 5 { // five more cycles
		x.push(t, 1)
		x.age(t, 3+i, longAgo)
		harness.Eventually(t, 10*time.Second, "the first phase goes on", func() bool { return x.marks(t).start == int64(4+i) })
	}
	require.Len(t, logged(t, m)["ERROR"], 1, "a line in 30 s")
	x.DB.Exec(t, `ALTER FUNCTION queen.away(UUID, TIMESTAMPTZ, INT) RENAME TO log_txns_purge_step_v1`)
	harness.Eventually(t, 10*time.Second, "the second phase works again", func() bool { return x.marks(t).txns == 8 })
	requireSound(t, x.DB)
}

// TestMetricsPurge trims by age, in portions, and its failure is no failure of
// the cycle.
func TestMetricsPurge(t *testing.T) {
	t.Parallel()
	x := own(t)
	fill := func() {
		x.DB.Exec(t, `INSERT INTO queen.retention_history (retention_type, executed_at)
			SELECT 'retention', now() - make_interval(days => d) FROM generate_series(80, 99) AS d`)
		x.DB.Exec(t, `INSERT INTO queen.system_metrics (captured_at, service, hostname, metrics)
			SELECT now() - make_interval(days => d), 'broker', 'host', '{}' FROM generate_series(80, 99) AS d`)
	}
	left := func(table string) int { return harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.`+table) }
	fill()
	traceChanges(t, x.DB)
	for range 3 { // one portion of each table in a cycle
		x.cycle(t, "RETENTION_BATCH_SIZE=4")
	}
	for _, table := range []string{"retention_history", "system_metrics"} {
		require.Equal(t, 10, left(table), "%s of the last 89 days", table)
		for _, c := range changes(t, x.DB, "DELETE "+table) {
			require.LessOrEqual(t, c.Rows, 4)
		}
	}
	x.cycle(t, "METRICS_RETENTION_DAYS=85")
	require.Equal(t, 5, left("retention_history"))

	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	x.age(t, 2, longAgo)
	x.DB.Exec(t, `ALTER TABLE queen.system_metrics RENAME TO away`)
	m := harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=100", "QUEEN_LOG_JSON=true", "LOG_LEVEL=debug")
	harness.Eventually(t, 20*time.Second, "cycles go on", func() bool { return x.marks(t).start == 3 && len(logged(t, m)["DEBUG"]) >= 5 })
	lines := logged(t, m)
	require.Len(t, append(lines["WARN"], lines["ERROR"]...), 1, "a line a minute")
}

// TestParallelismHasNoEffect asks for eight steps at once.
func TestParallelismHasNoEffect(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	for i := range 10 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%d", i), 1)
	}
	ageAll(t, x.DB, x.queue)
	traceChanges(t, x.DB)
	x.cycle(t, "RETENTION_PARALLELISM=8")
	all := changes(t, x.DB, "DELETE log_segments")
	require.Len(t, all, 10)
	for _, c := range all {
		require.Equal(t, all[0].Session, c.Session)
	}
}

// TestRunOnceTellsWhatItDid and what it would do.
func TestRunOnceTellsWhatItDid(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 7)
	x.age(t, 4, longAgo)
	for range 2 {
		end := harness.Maintain(t, x.DB, nil, "run-once", "--dry-run")
		require.Zero(t, end.Code, "%+v", end)
		require.Contains(t, end.Stdout, x.queue)
		require.Regexp(t, `\b5\b`, end.Stdout)
		x.requireStart(t, 0)
		require.EqualValues(t, 0, x.marks(t).txns)
	}
	out := x.cycle(t)
	require.Contains(t, out, x.queue)
	require.Regexp(t, `\b5\b`, out)
	x.requireStart(t, 5)
	require.NotContains(t, x.cycle(t), x.queue, "nothing was left")
}

// TestHeldLaneGoesSoonAfterItsGroupMovesOn keeps the data of a lane due for some
// cycles, so that it is not looked at in each, and then releases it.
func TestHeldLaneGoesSoonAfterItsGroupMovesOn(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"completedRetentionSeconds":3600}`)
	x.push(t, 4)
	x.consume(t, "slow", 1)
	x.age(t, 3, longAgo)
	harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=100")
	harness.Eventually(t, 10*time.Second, "what was consumed is gone", func() bool { return x.marks(t).start == 1 })
	x.consume(t, "slow", 3)
	harness.Eventually(t, 7*time.Second, "so is the rest", func() bool { return x.marks(t).start == 4 })
}

// TestLaneThatIsLockedWaitsForALaterCycle keeps the row of one of two lanes locked
// for some cycles.
func TestLaneThatIsLockedWaitsForALaterCycle(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	other := x.another(t)
	other.Configure(t, other.queue, `{"maxWaitTimeSeconds":3600}`)
	for _, c := range []*cell{x, other} {
		c.push(t, 3)
		c.age(t, 2, longAgo)
	}
	tx, err := x.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, x.pid(t, lane))
	require.NoError(t, err)
	m := harness.StartMaintainer(t, x.DB, "QUEEN_LOG_JSON=true")
	harness.Eventually(t, 15*time.Second, "the other lane is swept", func() bool { return other.marks(t) == marks{start: 3, last: 2, txns: 3} })
	require.Equal(t, marks{start: 0, last: 2, txns: 0}, x.marks(t))
	require.NoError(t, tx.Rollback(t.Context()))
	harness.Eventually(t, 15*time.Second, "so is the one that was locked", func() bool { return x.marks(t) == marks{start: 3, last: 2, txns: 3} })
	require.Empty(t, logged(t, m)["ERROR"], "that is no failure")
}

// TestWrongNotesAreRepaired spoils what lane rows note of their oldest rows, as
// an older binary does that does not know of them.
func TestWrongNotesAreRepaired(t *testing.T) {
	t.Parallel()
	x := own(t)
	wrong := []string{"NULL", "now()", "now() + interval '1 day'", "now() - interval '1000 days'"}
	var cells []*cell
	for range wrong {
		c := x.another(t)
		c.Configure(t, c.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
		c.push(t, 3)
		c.age(t, 1, longAgo)
		cells = append(cells, c)
	}
	for i, c := range cells {
		x.DB.Exec(t, `UPDATE queen.log_partitions SET oldest_live_at = `+wrong[i]+`, oldest_txn_at = `+wrong[i]+` WHERE id = $1`, c.pid(t, lane))
	}
	for range 2 { // the walk comes at the end of a cycle
		forgetClocks(t, x.DB)
		x.cycle(t)
	}
	for i, c := range cells {
		require.Equal(t, marks{start: 2, last: 2, txns: 2}, c.marks(t), wrong[i])
	}
	requireSound(t, x.DB)
}
