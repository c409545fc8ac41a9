package store_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// reads counts what a transaction did to a table and to its TOAST table.
type reads struct{ scans, rows, chunks int64 }

func readsOf(ctx context.Context, tx pgx.Tx, table string) (r reads, err error) {
	err = tx.QueryRow(ctx, `SELECT s.seq_scan, s.idx_tup_fetch, coalesce(t.idx_tup_fetch, 0)
		FROM pg_catalog.pg_stat_xact_user_tables AS s
		JOIN pg_catalog.pg_class AS c ON c.oid = s.relid
		LEFT JOIN pg_catalog.pg_stat_xact_all_tables AS t ON t.relid = c.reltoastrelid
		WHERE s.schemaname = 'queen' AND s.relname = $1`, table).Scan(&r.scans, &r.rows, &r.chunks)
	return r, err
}

// TestPopReadsLittleMoreThanItDelivers runs pops on a lane of thousands of
// segments whose blobs are stored out of line, on a session that made its plans
// while the tables were empty, and counts rows and TOAST chunks.
func TestPopReadsLittleMoreThanItDelivers(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	blob := make([]byte, 10_000) // six chunks
	_, _ = rand.Read(blob)
	const chunks = 6
	pops := []struct {
		name, call string
		rows       int64 // delivered segments
	}{
		{"one message", `SELECT r_blob FROM queen.log_pop_v1('q', 'deep', 'g1', 1, 60, 'w', TRUE)`, 1},
		{"one message, bin", `SELECT blobs FROM queen.log_pop_specific_bin_v1('q', 'deep', 'g2', 1, 60, 'w', TRUE, 'all', '')`, 1},
		{"seven segments", `SELECT blobs FROM queen.log_pop_specific_bin_v1('q', 'deep', 'g3', 70, 60, 'w', TRUE, 'all', '')`, 7},
		{"list", `SELECT blobs FROM queen.log_pop_list_v1('q', 'g4', ARRAY['deep', 'deeper'], 70, 60, 'w', TRUE, 2, 'all', '')`, 7},
		{"rows", `SELECT r_blob FROM queen.log_pop_span_v1('q', 'g9', ARRAY['deep', 'deeper'], 70, 60, 'w', TRUE, 2, 'all', '', FALSE,
			'00000000-0000-0000-0000-000000000001', NULL, NULL)`, 7},
		{"wildcard", `SELECT blobs FROM queen.log_pop_wildcard_bin_v1('q', 'g5', 10, 60, 'w', TRUE, 1, 'all', '')`, 1},
		{"delayed", `SELECT blobs FROM queen.log_pop_specific_bin_v1('delayed', 'deep', 'g6', 10, 60, 'w', TRUE, 'all', '')`, 1},
		{"new, far from the head", `SELECT blobs FROM queen.log_pop_specific_bin_v1('q', 'deep', 'g7', 10, 60, 'w', TRUE, 'new', '')`, 0},
		{"since a time after everything", `SELECT blobs FROM queen.log_pop_specific_bin_v1('q', 'deep', 'g8', 10, 60, 'w', TRUE, 'all', '2099-01-01')`, 0},
	}
	const shared = `SELECT blobs FROM queen.log_pop_multi_v1('00000000-0000-0000-0000-000000000001', 'q', 'g9', ARRAY['deep', 'deeper'],
		ARRAY[1, 1], ARRAY[0, 0], ARRAY['w', 'w'], ARRAY[100000, 100000], ARRAY[FALSE, FALSE], FALSE, NULL, NULL, NULL)`
	const push = `SELECT queen.log_push_multi_v1(ARRAY['names', 'names'], ARRAY['%s', '%s'], ARRAY[1, 1],
		ARRAY[substr(sha256(''), 1, 16), substr(sha256(''), 1, 16)], ARRAY[-2, -2], ARRAY['1', '1']::bytea[])`
	for _, queue := range []string{"q", "delayed"} {
		for _, lane := range []string{"deep", "deeper"} {
			b.lay(queue, lane)
		}
	}
	b.option("delayed", "delayed_processing", 60)
	b.registered("q", "g9")
	// Known to be empty, a table is cheapest to scan.
	b.exec(`ANALYZE queen.log_segments, queen.log_consumers, queen.log_partitions`)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(context.WithoutCancel(t.Context())) }()
	run := func(call string) (before, after reads) {
		tx, err := session.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Commit(t.Context()) }()
		before, err = readsOf(t.Context(), tx, "log_segments")
		require.NoError(t, err)
		rows, err := tx.Query(t.Context(), call)
		require.NoError(t, err)
		rows.Close()
		require.NoError(t, rows.Err())
		after, err = readsOf(t.Context(), tx, "log_segments")
		require.NoError(t, err)
		return before, after
	}
	for _, p := range pops {
		for range 3 { // plans are made on empty tables
			run(p.call)
		}
	}
	for range 3 {
		b.rowsRead(session, "log_partitions", shared)
		run(fmt.Sprintf(push, "a", "b"))
	}
	b.exec(`INSERT INTO queen.log_segments
		SELECT p.id, g * 10, g * 10 + 9, now() - interval '1 hour', $1 FROM queen.log_partitions AS p, generate_series(0, 2999) AS g WHERE p.name LIKE 'deep%'`, blob)
	b.exec(`UPDATE queen.log_partitions SET last_offset = 29999, last_write_at = now() WHERE name LIKE 'deep%'`)
	b.exec(`DELETE FROM queen.log_consumers WHERE consumer_group IN ('g7', 'g8')`)
	b.exec(`DELETE FROM queen.consumer_watermarks`)
	for _, p := range pops {
		before, after := run(p.call)
		require.Zero(t, after.scans-before.scans, "%s: sequential scans", p.name)
		require.LessOrEqual(t, after.rows-before.rows, 3*p.rows+15, "%s: rows read", p.name)
		// Each delivered blob whole, and one chunk for its header.
		require.LessOrEqual(t, after.chunks-before.chunks, p.rows*(chunks+1), "%s: chunks read", p.name)
		require.GreaterOrEqual(t, after.chunks-before.chunks, p.rows*chunks, "%s: delivered", p.name)
	}
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_write_at)
		SELECT q.id, 'idle-' || g, 'epoch' FROM queen.queues AS q, generate_series(1, 3000) AS g`)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group)
		SELECT id, 'g9' FROM queen.log_partitions ON CONFLICT DO NOTHING`)
	for _, call := range []string{pops[4].call, shared, fmt.Sprintf(push, "c", "d")} {
		for _, table := range []string{"log_partitions", "log_consumers"} {
			require.Less(t, b.rowsRead(session, table, call), int64(20), "%s: rows of %s", call, table)
		}
	}
}

// rowsRead is how many rows of a table a call reads. The call is undone.
func (b *popBench) rowsRead(session *pgx.Conn, table, call string) int64 {
	b.t.Helper()
	tx, err := session.Begin(b.t.Context())
	require.NoError(b.t, err)
	defer func() { _ = tx.Rollback(b.t.Context()) }()
	before, err := readsOf(b.t.Context(), tx, table)
	require.NoError(b.t, err)
	_, err = tx.Exec(b.t.Context(), call)
	require.NoError(b.t, err)
	after, err := readsOf(b.t.Context(), tx, table)
	require.NoError(b.t, err)
	require.Equal(b.t, before.scans, after.scans, "sequential scans of %s", table)
	return after.rows - before.rows
}
