package schema_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
)

func open(t *testing.T, cfg pgdb.Config) *pgdb.DB {
	t.Helper()
	db, err := pgdb.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

func exec(t *testing.T, db *pgdb.DB, sql string, args ...any) {
	t.Helper()
	require.NoError(t, db.Do(t.Context(), "exec", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

func scan[T any](t *testing.T, db *pgdb.DB, sql string, args ...any) T {
	t.Helper()
	var v T
	require.NoError(t, db.Do(t.Context(), "scan", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&v)
	}))
	return v
}

func TestASecondApplyRunsNoDDL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	// The oldest touched row of the catalogues moves with any DDL.
	const state = `SELECT md5(string_agg(x, ',' ORDER BY x)) FROM (
		SELECT 'c' || oid || ':' || xmin AS x FROM pg_class UNION ALL
		SELECT 'p' || oid || ':' || xmin FROM pg_proc UNION ALL
		SELECT 't' || oid || ':' || xmin FROM pg_trigger) AS s`
	before := scan[string](t, db, state)
	result, err := schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err)
	require.Empty(t, result.Applied)
	require.Equal(t, before, scan[string](t, db, state))
	require.NoError(t, schema.Check(t.Context(), db))
}

func TestTwentyAppliersAtOnceSucceed(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize = 2
	require.ErrorIs(t, schema.Check(t.Context(), open(t, cfg)), schema.ErrNotReady)
	var g errgroup.Group
	for range 20 {
		g.Go(func() error {
			db, err := pgdb.Open(t.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			_, err = schema.Apply(t.Context(), db, schema.Options{})
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.NoError(t, schema.Check(t.Context(), open(t, cfg)))
}

func TestAChangedFileIsAppliedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `UPDATE queen.schema_files SET sha256 = 'other' WHERE name = '001_log_schema.sql'`)
	result, err := schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"001_log_schema.sql"}, result.Applied)
}

func TestAnOlderBinaryAppliesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `UPDATE queen.schema_files SET sha256 = 'newer', generation = 1000 WHERE name = '001_log_schema.sql'`)
	result, err := schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err)
	require.True(t, result.Newer)
	require.Empty(t, result.Applied)
	require.NoError(t, schema.Check(t.Context(), db))

	exec(t, db, `UPDATE queen.schema_files SET min_compatible = 1000 WHERE name = '001_log_schema.sql'`)
	_, err = schema.Apply(t.Context(), db, schema.Options{})
	require.ErrorIs(t, err, schema.ErrTooNew)
	require.ErrorIs(t, schema.Check(t.Context(), db), schema.ErrTooNew)
}

func TestGivingUpNamesTheBlockingSession(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	blocker, err := db.Session(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, blocker.Close(context.Background())) }()
	// A statement of the file that needs a lock on the function's row.
	_, err = blocker.Exec(t.Context(), `SET idle_in_transaction_session_timeout = 0`)
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `BEGIN`)
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `LOCK TABLE pg_catalog.pg_proc IN SHARE MODE`)
	require.NoError(t, err)

	_, err = schema.Apply(t.Context(), db, schema.Options{Force: true, LockBudget: time.Second})
	var blocked *schema.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.ErrorIs(t, err, schema.ErrBlocked)
	require.Len(t, blocked.Sessions, 1)
	require.Contains(t, blocked.Sessions[0], fmt.Sprintf("pid %d ", blocker.PgConn().PID()))
	require.Contains(t, blocked.Sessions[0], "LOCK TABLE")
}

func TestClientsSeeNoErrorWhileTheSchemaIsAppliedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	done := make(chan struct{})
	var g errgroup.Group
	calls := []string{
		`SELECT * FROM queen.log_pop_v1('q', 'p', '__QUEUE_MODE__', 1, 1, 'w')`,
		`SELECT * FROM queen.log_pop_wildcard_bin_v1('q', '__QUEUE_MODE__', 1, 1, 'w', FALSE, 1, 'all', '')`,
		`SELECT queen.log_pop_specific_v1('q', 'p', '__QUEUE_MODE__', 1, 1, 'w', TRUE, 'all', '')`,
		`SELECT queen.log_push_multi_v1('{q}', '{p}', '{1}', ARRAY['\x000102030405060708090a0b0c0d0e0f'::bytea], '{-2}', ARRAY['\x00'::bytea])`,
		`SELECT queen.log_ack_by_hash_v1('00000000-0000-0000-0000-000000000000', 'g', '', '{}', '{}')`,
	}
	for _, call := range calls {
		g.Go(func() error {
			for {
				select {
				case <-done:
					return nil
				default:
				}
				err := db.Do(t.Context(), call, func(ctx context.Context, conn *pgx.Conn) error {
					rows, err := conn.Query(ctx, call)
					if err != nil {
						return err
					}
					rows.Close()
					return rows.Err()
				})
				if err != nil {
					return err
				}
			}
		})
	}
	var applyErr error
	for range 10 {
		_, err := schema.Apply(t.Context(), db, schema.Options{Force: true})
		applyErr = errors.Join(applyErr, err)
	}
	close(done)
	require.NoError(t, g.Wait())
	require.NoError(t, applyErr)
}
