package store_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// layRandom makes partitions in random states over several queues: some consumed,
// some in part, with holes at the head, with and without watermarks and groups.
func (b *bench) layRandom(queues, lanes int) {
	b.t.Helper()
	for q := range queues {
		queue := "q" + strconv.Itoa(q)
		b.configure(queue, `{}`, false)
		b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, log_start)
			SELECT q.id, 'p' || n, 19, 2 * (random() * 5)::bigint FROM queen.queues AS q, generate_series(1, $2::int) AS n WHERE q.name = $1`,
			queue, rand.IntN(lanes))
	}
	b.exec(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, 2 * n, 2 * n + 1, now() - p.age - (10 - n) * interval '1 minute', '1'
		FROM (SELECT p.*, random() * interval '2 hours' AS age FROM queen.log_partitions AS p) AS p, generate_series(0, 9) AS n
		WHERE 2 * n >= p.log_start AND random() < 0.9`)
	b.exec(`UPDATE queen.log_partitions AS p SET
			oldest_live_at = (SELECT s.created_at FROM queen.log_segments AS s WHERE s.partition_id = p.id ORDER BY s.base_offset LIMIT 1)
		WHERE random() < 0.95`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, lease_expires_at)
		SELECT p.id, g, (random() * 20 - 1)::bigint, 19, now() + (CASE WHEN random() < 0.5 THEN 1 ELSE -1 END) * interval '1 hour'
		FROM queen.log_partitions AS p, unnest(ARRAY['a', 'b', '__QUEUE_MODE__']) AS g WHERE random() < 0.5`)
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset")
		SELECT p.id, 'a', 0 FROM queen.log_partitions AS p, generate_series(1, 3) WHERE random() < 0.1`)
}

// requireStatsAreExact compares every row of a queue with the live figures of its
// partitions, one by one, and with a look at every segment.
func (b *bench) requireStatsAreExact() {
	b.t.Helper()
	var wrong, queues int64
	b.one([]any{&queues, &wrong}, `
		SELECT count(*), count(*) FILTER (WHERE (s.child_count, s.total_messages, s.pending_messages, s.dead_letter_messages,
				s.processing_messages, s.completed_messages, s.oldest_pending_at) IS DISTINCT FROM
			(l.lanes, l.total, l.pending, l.dead, least(l.leased, l.pending), greatest(l.total - l.pending - l.dead, 0), l.oldest))
		FROM queen.queues AS q
		LEFT JOIN queen.stats AS s ON s.queue_id = q.id AND s.stat_type = 'queue'
		CROSS JOIN LATERAL (
			SELECT count(*) AS lanes, coalesce(sum(f.r_total), 0)::bigint AS total, coalesce(sum(f.r_pending), 0)::bigint AS pending,
				coalesce(sum(f.r_dead_letter), 0)::bigint AS dead,
				min(queen.log_oldest_pending_at_v1(f.r_id, f.r_wanted)) FILTER (WHERE f.r_pending > 0) AS oldest,
				coalesce(sum((SELECT sum(k.batch_end - k.committed) FROM queen.log_consumers AS k
					WHERE k.partition_id = f.r_id AND k.lease_expires_at > now())), 0)::bigint AS leased
			FROM queen.log_partition_stats_v1(q.id) AS f
		) AS l`)
	require.Positive(b.t, queues)
	require.Zero(b.t, wrong, "of %d queues", queues)
}

func TestPagesAddUpExactly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.layRandom(12, 120)
	for _, page := range []int{1, 7, 100, 100_000} {
		b.exec(`DELETE FROM queen.stats`)
		_, _, err := b.store.RefreshStatsPaged(t.Context(), 0, page, max(page/10, 1))
		require.NoError(t, err)
		b.requireStatsAreExact()
	}
	b.exec(`DELETE FROM queen.stats`)
	_, err := b.store.RefreshStatsNow(t.Context())
	require.NoError(t, err)
	b.requireStatsAreExact()
}

// TestAPageReadsFewSegments counts what a page reads of the segments, on a session that
// used the function while the tables were empty.
func TestAPageReadsFewSegments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(context.WithoutCancel(t.Context())) }()
	const call = `SELECT r_oldest FROM queen.log_stats_page_v1('00000000-0000-0000-0000-000000000000', 10000)`
	page := func() (segments reads, oldest *time.Time) {
		require.NoError(t, pgx.BeginFunc(t.Context(), session, func(tx pgx.Tx) error {
			before, err := readsOf(t.Context(), tx, "log_segments")
			require.NoError(t, err)
			if err := tx.QueryRow(t.Context(), call).Scan(&oldest); err != nil {
				return err
			}
			after, err := readsOf(t.Context(), tx, "log_segments")
			require.NoError(t, err)
			segments = reads{scans: after.scans - before.scans, rows: after.rows - before.rows}
			return nil
		}))
		return segments, oldest
	}
	b.exec(`ANALYZE queen.log_segments, queen.log_consumers, queen.log_partitions, queen.log_dlq`)
	for range 3 {
		_, err := session.Exec(t.Context(), call)
		require.NoError(t, err)
	}

	// A thousand partitions of ten segments, each an hour apart from the next.
	b.configure("q", `{}`, false)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at)
		SELECT q.id, 'p' || n, 9, now() - n * interval '1 hour' FROM queen.queues AS q, generate_series(1, 1000) AS n`)
	b.exec(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, n, n, p.oldest_live_at + n * interval '1 minute', '1' FROM queen.log_partitions AS p, generate_series(0, 9) AS n`)
	oldestOf := func(base int) (at *time.Time) {
		b.one([]any{&at}, `SELECT min(created_at) FROM queen.log_segments WHERE base_offset = $1`, base)
		return at
	}
	for _, c := range []struct {
		name, cursors string
		oldest        *time.Time
		rows          int64
	}{
		{"no cursor", `DELETE FROM queen.log_consumers`, oldestOf(0), 0},
		{"all consumed", `INSERT INTO queen.log_consumers (partition_id, committed) SELECT id, 9 FROM queen.log_partitions`, nil, 0},
		{"half consumed", `UPDATE queen.log_consumers SET committed = 4`, oldestOf(5), 16 + 1}, // one still has a watermark below what was found
		{"nothing consumed", `UPDATE queen.log_consumers SET committed = -1`, oldestOf(0), 0},
	} {
		b.exec(c.cursors)
		segments, oldest := page()
		require.Equal(t, c.oldest, oldest, c.name)
		require.Equal(t, reads{rows: c.rows}, segments, c.name)
	}
}

// Of 2500 partitions that were consumed in part, any could have waited longest.
func TestAPageLooksUpABoundedNumberOfSegments(t *testing.T) {
	t.Parallel()
	const looks = 1000
	b := setup(t)
	b.configure("q", `{}`, false)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at)
		SELECT q.id, n, 1, now() - interval '1 day' + n * interval '1 second' FROM queen.queues AS q, generate_series(1, 2500) AS n`)
	b.exec(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, n, n, CASE WHEN n = 0 THEN p.oldest_live_at ELSE now() - p.name::int * interval '1 second' END, '1'
		FROM queen.log_partitions AS p, generate_series(0, 1) AS n`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, committed) SELECT id, 0 FROM queen.log_partitions`)
	b.exec(`ANALYZE queen.log_segments, queen.log_consumers, queen.log_partitions, queen.log_dlq`)
	_, _, err := b.store.RefreshStats(t.Context(), 0)
	require.NoError(t, err)
	var want time.Time
	b.one([]any{&want}, `SELECT s.created_at FROM queen.log_segments AS s JOIN queen.log_partitions AS p ON p.id = s.partition_id
		WHERE s.base_offset = 1 AND p.name = $1::text`, strconv.Itoa(looks))
	require.Equal(t, &want, b.lag("queue", b.queueID("q")).Oldest, "of those that were looked up")
}

// Of thirty partitions that were consumed in part, the last by its watermark has waited
// longest.
func TestTheOldestMayHaveAHighWatermark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{}`, false)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at)
		SELECT q.id, n, 1, now() - interval '1 day' + n * interval '1 second' FROM queen.queues AS q, generate_series(1, 30) AS n`)
	b.exec(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, n, n, p.oldest_live_at + n * (30 - p.name::int) * interval '1 hour', '1' FROM queen.log_partitions AS p, generate_series(0, 1) AS n`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, committed) SELECT id, 0 FROM queen.log_partitions`)
	_, _, err := b.store.RefreshStats(t.Context(), 0)
	require.NoError(t, err)
	var want time.Time
	b.one([]any{&want}, `SELECT max(oldest_live_at) FROM queen.log_partitions`)
	require.Equal(t, &want, b.lag("queue", b.queueID("q")).Oldest)
	b.requireStatsAreExact()
}

// TestAWriteReadsTheRowsItWrites counts what the writing of ten queues out of a thousand
// reads of the statistics, on a session that made its plans while there was one.
func TestAWriteReadsTheRowsItWrites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("first", `{}`, false)
	b.refresh() // retained bytes are written where there are statistics already
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(context.WithoutCancel(t.Context())) }()
	const queues, chunk, reading = 1000, 10, 5 // a row may be read five times: looked at, locked, written
	for name, call := range map[string]string{
		"figures": `SELECT queen.log_stats_write_v1($1, $2, $2, $2, $2, $2, array_fill(NULL::timestamptz, ARRAY[cardinality($1::uuid[])]))`,
		"bytes":   `SELECT queen.log_stats_bytes_write_v1($1, $2, $2)`,
	} {
		write := func() (read int64) {
			var ids []uuid.UUID
			b.one([]any{&ids}, `SELECT array_agg(id) FROM (SELECT id FROM queen.queues ORDER BY id LIMIT $1) AS q`, chunk)
			require.NoError(t, pgx.BeginFunc(t.Context(), session, func(tx pgx.Tx) error {
				var written int64
				before, err := readsOf(t.Context(), tx, "stats")
				require.NoError(t, err)
				require.NoError(t, tx.QueryRow(t.Context(), call, ids, make([]int64, len(ids))).Scan(&written))
				require.EqualValues(t, len(ids), written, name)
				after, err := readsOf(t.Context(), tx, "stats")
				require.NoError(t, err)
				require.Equal(t, before.scans, after.scans, "%s: no scan", name)
				read = after.rows - before.rows
				return nil
			}))
			return read
		}
		b.exec(`DELETE FROM queen.queues WHERE name <> 'first'`)
		for range 3 { // plans are made on one row
			write()
		}
		b.exec(`INSERT INTO queen.queues (name) SELECT 'q' || n FROM generate_series(1, $1) AS n`, queues)
		b.refresh()
		require.LessOrEqual(t, write(), int64(reading*chunk), name)
	}
}
