package schema_test

import (
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
)

// generation2 is the schema before lanes had watermarks: the files it had, less the
// lines and statements that name one.
func generation2(t *testing.T) fstest.MapFS {
	t.Helper()
	pieces, err := schema.FilePieces()
	require.NoError(t, err)
	watermark := regexp.MustCompile(`oldest_(live|txn)_at`)
	line := regexp.MustCompile(`(?m)^.*oldest_(live|txn)_at.*\n`)
	fsys := fstest.MapFS{}
	for _, name := range []string{
		"schema.sql", "001_log_schema.sql", "002_streams_schema.sql", "003_log_push.sql", "004_log_pop.sql", "005_log_ack.sql",
		"010_log_admin.sql", "012_configure.sql", "013_analytics.sql",
	} {
		require.NotEmpty(t, pieces[name], name)
		var kept []string
		for _, piece := range pieces[name] {
			whole := strings.HasPrefix(piece, "CREATE TABLE") || strings.HasPrefix(piece, "BEGIN")
			switch {
			case !watermark.MatchString(piece):
				kept = append(kept, piece)
			case whole:
				kept = append(kept, line.ReplaceAllString(piece, ""))
			}
		}
		path := name
		if name != "schema.sql" {
			path = "procedures/" + name
		}
		fsys[path] = &fstest.MapFile{Data: []byte(strings.Join(kept, "\n"))}
	}
	return fsys
}

// old is a database of generation 2 with lanes that hold messages.
func old(t *testing.T) *pgdb.DB {
	t.Helper()
	db := open(t, pgtest.Empty(t))
	_, err := schema.ApplyFS(t.Context(), db, generation2(t), schema.Options{})
	require.NoError(t, err)
	exec(t, db, `UPDATE queen.schema_files SET generation = 2`)
	require.Zero(t, scan[int](t, db, `SELECT count(*) FROM pg_attribute WHERE attname LIKE 'oldest%at' AND attrelid = 'queen.log_partitions'::regclass`))
	require.NoError(t, call(t.Context(), db, `SELECT queen.log_push_multi_v1(array_fill('q'::text, ARRAY[500]),
		(SELECT array_agg('p' || g) FROM generate_series(1, 500) AS g), array_fill(1, ARRAY[500]),
		array_fill('\x000102030405060708090a0b0c0d0e0f'::bytea, ARRAY[500]), array_fill(-2::bigint, ARRAY[500]), array_fill('\x00'::bytea, ARRAY[500]))`))
	return db
}

// A database of generation 2 becomes one of today while clients push, and the walk
// then finds the watermarks of the lanes it already had.
func TestUpgradeOfADatabaseWithoutWatermarks(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{
		"under traffic": `SELECT`,
		"prepared by hand": `ALTER TABLE queen.log_partitions ADD COLUMN oldest_live_at TIMESTAMPTZ, ADD COLUMN oldest_txn_at TIMESTAMPTZ;
			CREATE INDEX idx_log_partitions_empty ON queen.log_partitions (last_write_at, id) WHERE oldest_live_at IS NULL;`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := old(t)
			exec(t, db, prepare)
			require.ErrorIs(t, schema.Check(t.Context(), db), schema.ErrNotReady)
			done := make(chan struct{})
			var g errgroup.Group
			for _, sql := range []string{
				`SELECT queen.log_push_multi_v1('{q}', '{p1}', '{1}', ARRAY['\x000102030405060708090a0b0c0d0e0f'::bytea], '{-2}', ARRAY['\x00'::bytea])`,
				`SELECT queen.log_push_multi_v1('{q,q}', '{p2,new}', '{1,1}', ARRAY['\x000102030405060708090a0b0c0d0e0f'::bytea, '\x000102030405060708090a0b0c0d0e0f'], '{-2,-2}', ARRAY['\x00'::bytea, '\x00'])`,
				`SELECT queen.log_pop_specific_v1('q', 'p1', '__QUEUE_MODE__', 1, 1, 'w', TRUE, 'all', '')`,
			} {
				g.Go(loop(done, func() error { return call(t.Context(), db, sql) }))
			}
			result, err := schema.Apply(t.Context(), db, schema.Options{})
			close(done)
			require.NoError(t, err)
			require.NoError(t, g.Wait())
			require.Contains(t, result.Applied, "001_log_schema.sql")
			require.NoError(t, schema.Check(t.Context(), db))

			got, err := dump(t.Context(), db)
			require.NoError(t, err)
			want, err := dump(t.Context(), pgtest.New(t))
			require.NoError(t, err)
			require.Equal(t, want, got)

			const wrong = `SELECT count(*) FROM queen.log_partitions AS p
				WHERE p.oldest_live_at IS DISTINCT FROM (SELECT min(created_at) FROM queen.log_segments WHERE partition_id = p.id)
				   OR p.oldest_txn_at IS DISTINCT FROM (SELECT min(created_at) FROM queen.log_txns WHERE partition_id = p.id)`
			require.GreaterOrEqual(t, scan[int](t, db, wrong), 500, "known to nobody yet, and not guessed by a push")
			const walk = `SELECT (queen.log_watermark_walk_step_v1('00000000-0000-0000-0000-000000000000', 1000) ->> 'repaired')::int`
			for scan[int](t, db, walk) > 0 {
				continue
			}
			require.Zero(t, scan[int](t, db, wrong))
		})
	}
}
