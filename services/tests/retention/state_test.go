package retention_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// pid is the id of a partition of the test's queue.
func (c *cell) pid(t *testing.T, partition string) string {
	t.Helper()
	return c.DB.PartitionID(t, c.queue, partition)
}

// sides are the tables that a lane keeps messages in, and where its row notes the
// oldest of each.
var segments, sidecar = side{"queen.log_segments", "oldest_live_at"}, side{"queen.log_txns", "oldest_txn_at"}

type side struct{ table, note string }

// age moves the segments and sidecar rows of the test's lane up to an offset
// into the past.
func (c *cell) age(t *testing.T, upTo int, by time.Duration) {
	t.Helper()
	ageLanes(t, c.DB, []string{c.pid(t, lane)}, upTo, by, segments, sidecar)
}

// ageAll moves everything that a queue holds into the past.
func ageAll(t *testing.T, db *harness.Database, queue string) {
	t.Helper()
	pids := harness.Value[[]string](t, db, `SELECT array_agg(p.id::text) FROM queen.log_partitions AS p
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, queue)
	ageLanes(t, db, pids, math.MaxInt32, longAgo, segments, sidecar)
}

// ageLanes holds the lanes as every writer does: nobody sees the rows moved and
// the note of the oldest not.
func ageLanes(t *testing.T, db *harness.Database, pids []string, upTo int, by time.Duration, sides ...side) {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	run := func(sql string, args ...any) {
		_, err := tx.Exec(t.Context(), sql, args...)
		require.NoError(t, err, sql)
	}
	run(`SELECT FROM queen.log_partitions WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE`, pids)
	for _, s := range sides {
		run(`UPDATE `+s.table+` SET created_at = created_at - $3::interval
			WHERE partition_id = ANY ($1::uuid[]) AND base_offset <= $2`, pids, upTo, by)
		run(`UPDATE queen.log_partitions AS p SET `+s.note+` = (
				SELECT x.created_at FROM `+s.table+` AS x WHERE x.partition_id = p.id ORDER BY x.base_offset LIMIT 1)
			WHERE p.id = ANY ($1::uuid[])`, pids)
	}
	require.NoError(t, tx.Commit(t.Context()))
}

// marks are the two ends of a lane's log and the start of its sidecar.
type marks struct{ start, last, txns int64 }

func (c *cell) marks(t *testing.T) marks {
	t.Helper()
	var m marks
	c.DB.Row(t, `SELECT log_start, last_offset, txns_start FROM queen.log_partitions WHERE id = $1`,
		[]any{c.pid(t, lane)}, []any{&m.start, &m.last, &m.txns})
	return m
}

// requireStart requires that everything below an offset is gone and the rest is
// there.
func (c *cell) requireStart(t *testing.T, want int) {
	t.Helper()
	require.EqualValues(t, want, c.marks(t).start, "log_start")
	requireSound(t, c.DB)
}

// event is one row of the retention history.
type event struct {
	Type     string
	Messages int64
}

// history lists what was removed from a partition, oldest first.
func history(t *testing.T, db *harness.Database, pid string) []event {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(),
		`SELECT retention_type, messages_deleted FROM queen.retention_history WHERE partition_id = $1 ORDER BY id`, pid)
	require.NoError(t, err)
	defer rows.Close()
	events := []event{}
	for rows.Next() {
		var e event
		require.NoError(t, rows.Scan(&e.Type, &e.Messages))
		events = append(events, e)
	}
	require.NoError(t, rows.Err())
	return events
}

// removed sums up what each rule took from the test's lane.
func (c *cell) removed(t *testing.T) map[string]int64 {
	t.Helper()
	sum := map[string]int64{}
	for _, e := range history(t, c.DB, c.pid(t, lane)) {
		sum[e.Type] += e.Messages
	}
	return sum
}

// unsound lists the lanes whose notes and rows contradict each other. One
// statement, one snapshot: it may look while everything is at work.
const unsound = `
WITH lane AS (
	SELECT p.id, p.name, p.log_start, p.txns_start, p.last_offset, p.oldest_live_at, p.oldest_txn_at,
	       s.base, s.born, s.rows, s.frames, s.last, x.base AS tbase, x.born AS tborn, x.rows AS trows, x.frames AS tframes, x.last AS tlast,
	       COALESCE(h.frames, 0) AS removed
	FROM queen.log_partitions AS p
	CROSS JOIN LATERAL (
		SELECT min(base_offset) AS base, max(end_offset) AS last, count(*) AS rows, sum(end_offset - base_offset + 1) AS frames,
		       (array_agg(created_at ORDER BY base_offset))[1] AS born
		FROM queen.log_segments WHERE partition_id = p.id) AS s
	CROSS JOIN LATERAL (
		SELECT min(base_offset) AS base, max(end_offset) AS last, count(*) AS rows, sum(end_offset - base_offset + 1) AS frames,
		       (array_agg(created_at ORDER BY base_offset))[1] AS born
		FROM queen.log_txns WHERE partition_id = p.id) AS x
	CROSS JOIN LATERAL (
		SELECT sum(messages_deleted) AS frames FROM queen.retention_history WHERE partition_id = p.id) AS h
)
SELECT l.name || ': ' || v.what || ' ' || to_jsonb(l)
FROM lane AS l
CROSS JOIN LATERAL (VALUES
	('log_start is not the first segment', log_start IS DISTINCT FROM COALESCE(base, last_offset + 1)),
	('txns_start is not the first sidecar row', txns_start IS DISTINCT FROM COALESCE(tbase, last_offset + 1)),
	('a hole among the segments', rows > 0 AND (last <> last_offset OR frames <> last - base + 1)),
	('a hole among the sidecar rows', trows > 0 AND (tlast <> last_offset OR tframes <> tlast - tbase + 1)),
	('oldest_live_at is wrong', oldest_live_at IS DISTINCT FROM born),
	('oldest_txn_at is wrong', oldest_txn_at IS DISTINCT FROM tborn),
	('the history does not say what is missing', removed <> log_start)
) AS v (what, holds)
WHERE v.holds
UNION ALL
SELECT 'sidecar rows of no partition: ' || t.partition_id
FROM (SELECT DISTINCT partition_id FROM queen.log_txns) AS t
WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions AS p WHERE p.id = t.partition_id)
LIMIT 10`

// requireSound requires of every lane of a database that its notes are exact,
// that its rows have no hole, and that the history tells what is missing.
func requireSound(t *testing.T, db *harness.Database) {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), unsound)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var what string
		require.NoError(t, rows.Scan(&what))
		require.Fail(t, what)
	}
	require.NoError(t, rows.Err())
}
