package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// untouched is beyond the default window of the cleanup.
const untouched = 31 * 24 * time.Hour

// abandonLanes moves everything that a queue's lanes know of time, and their
// messages, far into the past.
func abandonLanes(t *testing.T, db *harness.Database, queue string) {
	t.Helper()
	ageAll(t, db, queue)
	quieten(t, db, queue, longAgo)
}

// quieten moves the last push and all group activity of a queue's lanes into the
// past.
func quieten(t *testing.T, db *harness.Database, queue string, by time.Duration) {
	t.Helper()
	const mine = `(SELECT p.id FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1)`
	db.Exec(t, `UPDATE queen.log_partitions SET created_at = created_at - $2::interval, last_write_at = last_write_at - $2::interval
		WHERE id IN `+mine, queue, by)
	db.Exec(t, `UPDATE queen.log_consumers SET created_at = created_at - $2::interval,
		lease_acquired_at = lease_acquired_at - $2::interval, lease_expires_at = lease_expires_at - $2::interval
		WHERE partition_id IN `+mine, queue, by)
}

// emptied fills a lane that retention may empty, lets a group read it, and makes
// it silent for the given time.
func (c *cell) emptied(t *testing.T, silent time.Duration) {
	t.Helper()
	c.Configure(t, c.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	c.push(t, 3)
	c.consume(t, "g", 3)
	c.age(t, 2, longAgo)
	quieten(t, c.DB, c.queue, silent)
}

func (c *cell) lanes(t *testing.T) int {
	t.Helper()
	return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, c.queue)
}

// TestEmptyLaneIsRemovedAfterItsWindow has one cycle empty the lane and remove it.
func TestEmptyLaneIsRemovedAfterItsWindow(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.emptied(t, untouched)
	pid := x.pid(t, lane)
	ageLanes(t, x.DB, []string{pid}, 2, -longAgo, sidecar) // which no window lets go
	x.cycle(t)
	require.Zero(t, x.lanes(t), "what the same cycle has emptied may go")
	for _, table := range []string{"log_segments", "log_txns", "log_consumers"} {
		require.Zero(t, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.`+table), table)
	}
	require.Equal(t, []event{{byAge, 3}, {byCleanup, 0}}, history(t, x.DB, pid), "the history outlives the lane")
}

// TestRecreatedLaneIsANewLane pushes after the removal.
func TestRecreatedLaneIsANewLane(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.emptied(t, untouched)
	pid := x.pid(t, lane)
	x.DB.Exec(t, `INSERT INTO queen.message_traces (partition_id, transaction_id) VALUES ($1, 'traced')`, pid)
	x.cycle(t)
	require.Zero(t, x.lanes(t), "a trace is no reason to keep a lane")
	require.Equal(t, 1, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.message_traces WHERE partition_id = $1`, pid), "traces stay")

	x.push(t, 2)
	require.NotEqual(t, pid, x.pid(t, lane))
	require.Equal(t, marks{start: 0, last: 1, txns: 0}, x.marks(t), "offsets begin at 0")
	require.Equal(t, numbers(0, 2), x.Pop(t, x.queue, "consumerGroup=g&batch=10&autoAck=true").Payloads())
	require.EqualValues(t, 2, x.DB.Cursor(t, x.queue, lane, "g").TotalConsumed, "the count begins anew")
	requireSound(t, x.DB)
}

// TestGroupEntersARecreatedLaneByItsSubscription has one group that started at
// the begin of the queue and one that started at its end.
func TestGroupEntersARecreatedLaneByItsSubscription(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 3)
	require.Len(t, x.Pop(t, x.queue, "consumerGroup=all&batch=10&autoAck=true").Messages, 3)
	x.RequireNone(t, harness.PopPath(x.queue, "consumerGroup=new&subscriptionMode=new"))
	abandonLanes(t, x.DB, x.queue)
	x.cycle(t)
	require.Zero(t, x.lanes(t))
	x.push(t, 2)
	for _, group := range []string{"all", "new"} {
		require.Equal(t, numbers(0, 2), x.Pop(t, x.queue, "consumerGroup="+group+"&batch=10").Payloads(), group)
	}
}

// TestLaneIsKept gives an empty lane one reason to stay each.
func TestLaneIsKept(t *testing.T) {
	t.Parallel()
	consumers := func(set string) func(*testing.T, *cell) {
		return func(t *testing.T, x *cell) {
			t.Helper()
			require.EqualValues(t, 1, x.DB.Exec(t, `UPDATE queen.log_consumers SET `+set+` WHERE partition_id = $1`, x.pid(t, lane)))
		}
	}
	cases := map[string]struct {
		kept bool
		what func(t *testing.T, x *cell)
	}{
		"nothing speaks for it": {false, func(*testing.T, *cell) {}},
		"a push inside the window": {true, func(t *testing.T, x *cell) {
			x.DB.Exec(t, `UPDATE queen.log_partitions SET last_write_at = now() - interval '29 days' WHERE id = $1`, x.pid(t, lane))
		}},
		"a creation inside the window": {true, func(t *testing.T, x *cell) {
			x.DB.Exec(t, `UPDATE queen.log_partitions SET created_at = now() - interval '29 days' WHERE id = $1`, x.pid(t, lane))
		}},
		"a segment": {true, func(t *testing.T, x *cell) {
			x.push(t, 1)
			quieten(t, x.DB, x.queue, untouched)
		}},
		"a dead letter": {true, func(t *testing.T, x *cell) {
			x.DB.Exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload)
				VALUES ($1, 'g', 0, 'dead', '{}')`, x.pid(t, lane))
		}},
		"state of a stream": {true, func(t *testing.T, x *cell) {
			x.DB.Exec(t, `WITH q AS (INSERT INTO queen_streams.queries (name, source_queue, config_hash) VALUES ('s', 'q', 'h') RETURNING id)
				INSERT INTO queen_streams.state (query_id, partition_id, key, value) SELECT id, $1, 'k', '{}' FROM q`, x.pid(t, lane))
		}},
		"a live lease":                                     {true, consumers(`batch_end = 2, worker_id = 'w', lease_acquired_at = now() - interval '31 days', lease_expires_at = now() + interval '1 minute'`)},
		"an expired lease does not":                        {false, consumers(`batch_end = 2, worker_id = 'w', lease_acquired_at = now() - interval '31 days', lease_expires_at = now() - interval '31 days'`)},
		"a lease that expired inside the window":           {true, consumers(`batch_end = NULL, worker_id = NULL, lease_acquired_at = NULL, lease_expires_at = now() - interval '29 days'`)},
		"a lease taken inside the window":                  {true, consumers(`lease_acquired_at = now() - interval '29 days'`)},
		"a group created inside the window":                {true, consumers(`created_at = now() - interval '29 days'`)},
		"a group that commits at delivery leaves no trace": {false, consumers(`lease_acquired_at = NULL, lease_expires_at = NULL, total_consumed = 9`)},
		"a trace does not": {false, func(t *testing.T, x *cell) {
			x.DB.Exec(t, `INSERT INTO queen.message_traces (partition_id, transaction_id) VALUES ($1, 'traced')`, x.pid(t, lane))
		}},
	}
	x := own(t)
	all := map[string]*cell{}
	for name := range cases {
		all[name] = x.another(t)
		all[name].emptied(t, untouched)
	}
	x.cycle(t, "QUEEN_PARTITION_CLEANUP_ENABLED=false")
	for name, c := range cases {
		all[name].requireStart(t, 3)
		c.what(t, all[name])
	}
	x.cycle(t)
	for name, c := range cases {
		require.Equal(t, map[bool]int{true: 1}[c.kept], all[name].lanes(t), name)
	}
	requireSound(t, x.DB)
}

// TestCleanupWindow is PARTITION_CLEANUP_DAYS, 30 unless set, at least one.
func TestCleanupWindow(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	x := own(t)
	for _, c := range []struct {
		env    string
		silent time.Duration
		kept   bool
	}{
		{"PARTITION_CLEANUP_DAYS=", 29 * day, true}, // an empty value is the default
		{"PARTITION_CLEANUP_DAYS=", 31 * day, false},
		{"PARTITION_CLEANUP_DAYS=3", 2 * day, true},
		{"PARTITION_CLEANUP_DAYS=3", 4 * day, false},
		{"PARTITION_CLEANUP_DAYS=0", 23 * time.Hour, true},
		{"PARTITION_CLEANUP_DAYS=0", 25 * time.Hour, false},
		{"QUEEN_PARTITION_CLEANUP_ENABLED=false", longAgo, true},
	} {
		y := x.another(t)
		y.emptied(t, c.silent)
		forgetClocks(t, x.DB)
		x.cycle(t, c.env)
		require.Equal(t, map[bool]int{true: 1}[c.kept], y.lanes(t), "%s after %s", c.env, c.silent)
		y.DeleteQueue(t, y.queue)
	}
}

// forgetClocks makes everything due that a maintainer does on a clock of its own.
func forgetClocks(t *testing.T, db *harness.Database) {
	t.Helper()
	db.Exec(t, `DELETE FROM queen.system_state WHERE key LIKE 'maintenance_clock%'`)
}

// TestCleanupDoesNotAskTheQueue removes an empty lane of a queue without
// retention, and keeps one that holds something.
func TestCleanupDoesNotAskTheQueue(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.push(t, 2)
	x.PushEach(t, x.queue, "full", 1)
	abandonLanes(t, x.DB, x.queue)
	pid := x.pid(t, lane)
	x.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1`, pid)
	x.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = 2, oldest_live_at = NULL WHERE id = $1`, pid)
	x.cycle(t)
	require.Equal(t, "full", harness.Value[string](t, x.DB, `SELECT name FROM queen.log_partitions`))
}

// TestCleanupTakesBatches removes more lanes than a batch holds, in one cycle,
// each batch one transaction with one history row for every lane.
func TestCleanupTakesBatches(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	for i := range 11 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%02d", i), 1)
	}
	abandonLanes(t, x.DB, x.queue)
	traceChanges(t, x.DB)
	x.cycle(t, "RETENTION_BATCH_SIZE=4")
	require.Zero(t, x.lanes(t))
	removed := 0
	for _, c := range changes(t, x.DB, "DELETE log_partitions") {
		require.LessOrEqual(t, c.Rows, 4, "a slow step makes the next ones smaller, and none is larger")
		removed += c.Rows
	}
	require.Equal(t, 11, removed)
	require.Equal(t, 11, harness.Value[int](t, x.DB, `SELECT count(DISTINCT partition_id) FROM queen.retention_history WHERE retention_type = $1`, byCleanup))
	require.Equal(t, 11, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.retention_history WHERE retention_type = $1 AND messages_deleted = 0`, byCleanup))
}

// TestCleanupRunsOnceAMinute finds another empty lane right after a cleanup, by
// the same process and by others: the minute is of the database.
func TestCleanupRunsOnceAMinute(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.emptied(t, untouched)
	harness.StartMaintainer(t, x.DB)
	harness.Eventually(t, 20*time.Second, "the first lane is removed", func() bool { return x.lanes(t) == 0 })
	x.push(t, 1)
	abandonLanes(t, x.DB, x.queue)
	harness.Eventually(t, 20*time.Second, "the second lane is emptied", func() bool { return x.marks(t).start == 1 })
	for i := range 3 { // some cycles
		y := x.another(t)
		y.emptied(t, 0)
		harness.Eventually(t, 20*time.Second, "cycles go on", func() bool { return y.marks(t).start == 3 })
		require.Equal(t, 1, x.lanes(t), "after cycle %d", i)
	}
	harness.StartMaintainer(t, x.DB)
	y := x.another(t)
	y.emptied(t, 0)
	harness.Eventually(t, 20*time.Second, "cycles go on", func() bool { return y.marks(t).start == 3 })
	require.Equal(t, 1, x.lanes(t))
	forgetClocks(t, x.DB)
	harness.Eventually(t, 20*time.Second, "the second lane is removed", func() bool { return x.lanes(t) == 0 })
}

// TestCleanupSkipsALaneThatIsHeld holds the row of one of two lanes as a pusher
// does: the cycle does not wait for it.
func TestCleanupSkipsALaneThatIsHeld(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 1)
	x.PushEach(t, x.queue, "other", 1)
	abandonLanes(t, x.DB, x.queue)
	x.cycle(t, "QUEEN_PARTITION_CLEANUP_ENABLED=false")
	tx, err := x.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, x.pid(t, lane))
	require.NoError(t, err)
	began := time.Now()
	x.cycle(t)
	took := time.Since(began)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, lane, harness.Value[string](t, x.DB, `SELECT name FROM queen.log_partitions`))
	require.Less(t, took, 5*time.Second, "a cycle beside a held lane")
}

// TestTimeSeriesCountsMessagesOnly reads what the retention view of the dashboard
// reads, before and after something was deleted and lanes were removed.
func TestTimeSeriesCountsMessagesOnly(t *testing.T) {
	t.Parallel()
	x := own(t)
	totals := func() (messages, events int64) {
		x.DB.Row(t, `SELECT COALESCE(r -> 'totals' ->> 'totalMsgs', '0')::bigint, COALESCE(r -> 'totals' ->> 'eventCount', '0')::bigint
			FROM queen.get_retention_timeseries_v1('{}') AS r`, nil, []any{&messages, &events})
		return messages, events
	}
	messages, events := totals()
	require.Zero(t, messages+events)
	x.emptied(t, untouched)
	x.cycle(t)
	require.Zero(t, x.lanes(t))
	messages, events = totals()
	require.EqualValues(t, 3, messages)
	require.EqualValues(t, 1, events)
}

// TestHistoryIsIndexedByTime looks into the catalogue.
func TestHistoryIsIndexedByTime(t *testing.T) {
	t.Parallel()
	x := shared(t)
	require.Positive(t, harness.Value[int](t, x.DB, `SELECT count(*) FROM pg_indexes
		WHERE schemaname = 'queen' AND tablename = 'retention_history' AND indexdef LIKE '%(executed_at%'`))
}
