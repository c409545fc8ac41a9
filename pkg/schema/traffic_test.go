package schema_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
)

// onWarn calls fn at the first warning.
type onWarn struct {
	slog.Handler
	once *sync.Once
	fn   func()
}

func (h onWarn) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (h onWarn) Handle(context.Context, slog.Record) error {
	h.once.Do(h.fn)
	return nil
}

const lockProcedures = `LOCK TABLE pg_catalog.pg_proc IN SHARE MODE`

func TestGivingUpNamesTheBlockingSession(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	blocker := session(t, db, lockProcedures)

	_, err := schema.Apply(t.Context(), db, schema.Options{Force: true, LockBudget: time.Millisecond})
	var blocked *schema.BlockedError
	require.ErrorAs(t, err, &blocked)
	require.ErrorIs(t, err, schema.ErrBlocked)
	require.Len(t, blocked.Sessions, 1)
	require.Contains(t, err.Error(), fmt.Sprintf("pid %d,", blocker.PgConn().PID()))
	require.Contains(t, err.Error(), "application queen-test")
	require.Contains(t, err.Error(), "idle in transaction since 2")
	require.Contains(t, err.Error(), "LOCK TABLE")
}

func TestALockThatComesFreeIsTaken(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	blocker := session(t, db, lockProcedures)
	warned := false
	log := slog.New(onWarn{Handler: slog.DiscardHandler, once: &sync.Once{}, fn: func() {
		warned = true
		_, err := blocker.Exec(context.Background(), "COMMIT")
		require.NoError(t, err)
	}})
	result, err := schema.Apply(t.Context(), db, schema.Options{Force: true, Logger: log})
	require.NoError(t, err)
	require.True(t, warned)
	require.NotEmpty(t, result.Applied)
}

func TestWaitingForAnotherApplierEndsWithItsName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	other := holdAppliersLock(t, db)
	_, err := schema.Apply(t.Context(), db, schema.Options{Force: true, TurnBudget: time.Millisecond})
	require.ErrorIs(t, err, schema.ErrBlocked)
	require.ErrorContains(t, err, fmt.Sprintf("pid %d,", other.PgConn().PID()))
}

func TestACancelledApplyEndsAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	holdAppliersLock(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := schema.Apply(ctx, db, schema.Options{Force: true})
	require.ErrorIs(t, err, context.Canceled)
}

// Everything that pushes, pops and acks hold while they work: re-applying must
// pass by, or a restart would stop the traffic.
func TestReapplyingTakesNoLockThatTrafficHolds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	session(t, db, `
		INSERT INTO queen.queues (name) VALUES ('q');
		INSERT INTO queen.log_partitions (queue_id) SELECT id FROM queen.queues;
		DO $$ DECLARE r record; BEGIN
			FOR r IN SELECT c.oid::regclass AS t FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
				WHERE n.nspname IN ('queen', 'queen_streams') AND c.relkind = 'r' AND c.relname <> 'schema_files'
			LOOP EXECUTE format('LOCK TABLE %s IN ROW EXCLUSIVE MODE', r.t); END LOOP; END $$`)
	_, err := schema.Apply(t.Context(), db, schema.Options{Force: true, LockBudget: time.Nanosecond})
	require.NoError(t, err)
}

// loop calls fn until done is closed, and at least once.
func loop(done <-chan struct{}, fn func() error) func() error {
	return func() error {
		for {
			if err := fn(); err != nil {
				return err
			}
			select {
			case <-done:
				return nil
			default:
			}
		}
	}
}

// call reads all rows of a statement, prepared once per connection.
func call(ctx context.Context, db *pgdb.DB, sql string) error {
	return db.Do(ctx, sql, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	})
}

func TestClientsSeeNoErrorWhileTheSchemaIsAppliedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	done := make(chan struct{})
	var g errgroup.Group
	for _, sql := range []string{
		`SELECT * FROM queen.log_pop_v1('q', 'p', '__QUEUE_MODE__', 1, 1, 'w')`,
		`SELECT * FROM queen.log_pop_wildcard_bin_v1('q', '__QUEUE_MODE__', 1, 1, 'w', FALSE, 1, 'all', '')`,
		`SELECT queen.log_pop_specific_v1('q', 'p', '__QUEUE_MODE__', 1, 1, 'w', TRUE, 'all', '')`,
		`SELECT queen.log_push_multi_v1('{q}', '{p}', '{1}', ARRAY['\x000102030405060708090a0b0c0d0e0f'::bytea], '{-2}', ARRAY['\x00'::bytea])`,
		`SELECT queen.log_ack_by_hash_v1('00000000-0000-0000-0000-000000000000', 'g', '', '{}', '{}')`,
	} {
		g.Go(loop(done, func() error { return call(t.Context(), db, sql) }))
	}
	require.NoError(t, reapply(t, done, func(int) error {
		_, err := schema.Apply(t.Context(), db, schema.Options{Force: true})
		return err
	}))
	require.NoError(t, g.Wait())
}

// A function whose result type changes must be dropped: clients hold prepared
// statements of the old one, directly and from within other functions.
func TestClientsSeeNoErrorWhileAFunctionChangesItsResult(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	version := func(n int) map[string]string {
		columns, values := "a INT", "1"
		if n%2 == 1 {
			columns, values = "a INT, b TEXT", "1, 'x'"
		}
		return map[string]string{"001_f.sql": `
			BEGIN;
			DROP FUNCTION IF EXISTS queen.f(INT);
			CREATE FUNCTION queen.f(p INT) RETURNS TABLE (` + columns + `) LANGUAGE plpgsql AS
				$$ BEGIN RETURN QUERY SELECT ` + values + `; END $$;
			COMMIT;
			CREATE OR REPLACE FUNCTION queen.outer_f() RETURNS BIGINT LANGUAGE plpgsql AS
				$$ BEGIN RETURN (SELECT sum(a) FROM queen.f(1)); END $$;`}
	}
	applyVersion := func(n int) error {
		exec(t, db, `DELETE FROM queen.schema_files WHERE name <> 'schema.sql'`)
		_, err := schema.ApplyFS(t.Context(), db, corpus(t, version(n)), schema.Options{})
		return err
	}
	require.NoError(t, applyVersion(0))
	done := make(chan struct{})
	var g errgroup.Group
	for _, sql := range []string{`SELECT * FROM queen.f(1)`, `SELECT queen.outer_f()`, `SELECT a FROM queen.f(2) WHERE a = 1`} {
		for range 2 {
			g.Go(loop(done, func() error { return call(t.Context(), db, sql) }))
		}
	}
	require.NoError(t, reapply(t, done, applyVersion))
	require.NoError(t, g.Wait())
}

// reapply applies ten times, then tells the clients to stop.
func reapply(t *testing.T, done chan struct{}, apply func(n int) error) error {
	t.Helper()
	defer close(done)
	var errs []error
	for n := range 10 {
		errs = append(errs, apply(n+1))
	}
	return errors.Join(errs...)
}
