package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
)

// catalogueState moves with any change of an object, also with one that
// replaces it by an equal one.
const catalogueState = `SELECT md5(string_agg(x, ',' ORDER BY x)) FROM (
	SELECT 'c' || oid || ':' || xmin AS x FROM pg_class UNION ALL
	SELECT 'n' || oid || ':' || xmin FROM pg_namespace UNION ALL
	SELECT 'a' || attrelid || '.' || attnum || ':' || xmin FROM pg_attribute UNION ALL
	SELECT 'p' || oid || ':' || xmin FROM pg_proc UNION ALL
	SELECT 't' || oid || ':' || xmin FROM pg_trigger) AS s`

// refuseDDL makes every DDL statement of the database an error.
const refuseDDL = `
CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
	$$ BEGIN RAISE EXCEPTION 'no DDL: %', tg_tag; END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION public.refuse()`

func TestASecondApplyRunsNoDDL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, refuseDDL)
	before := scan[string](t, db, catalogueState)
	result, err := schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err)
	require.Empty(t, result.Applied)
	require.Equal(t, before, scan[string](t, db, catalogueState))
	require.NoError(t, schema.Check(t.Context(), db))

	_, err = schema.Apply(t.Context(), db, schema.Options{Force: true})
	require.ErrorContains(t, err, "no DDL", "the trigger of this test works")
}

func TestAnIdenticalBootDoesNotWaitForAnotherApplier(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	holdAppliersLock(t, db)
	_, err := schema.Apply(t.Context(), db, schema.Options{TurnBudget: 1})
	require.NoError(t, err)
}

func TestTwentyAppliersAtOnceSucceed(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize = 2
	witness := open(t, cfg)
	require.ErrorIs(t, schema.Check(t.Context(), witness), schema.ErrNotReady)
	var g errgroup.Group
	for range 20 {
		g.Go(func() error {
			db, err := pgdb.Open(t.Context(), cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			if _, err = schema.Apply(t.Context(), db, schema.Options{}); err != nil {
				return err
			}
			return schema.Check(t.Context(), db)
		})
	}
	require.NoError(t, g.Wait())
	require.NoError(t, schema.Check(t.Context(), witness))
}

func TestEveryFunctionBodyCompiles(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pieces, err := schema.Pieces()
	require.NoError(t, err)
	conn, err := db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	// Off while applying, because bodies name functions of later files; here
	// all of them exist.
	_, err = conn.Exec(t.Context(), "SET check_function_bodies = on")
	require.NoError(t, err)
	for _, p := range pieces {
		_, err := conn.PgConn().Exec(t.Context(), p).ReadAll()
		require.NoError(t, err, p)
	}
}

func TestAChangedFileIsAppliedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `UPDATE queen.schema_files SET sha256 = 'other' WHERE name = '001_log_schema.sql'`)
	result, err := schema.Apply(t.Context(), db, schema.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"001_log_schema.sql"}, result.Applied)
}

func TestAMissingPrivilegeIsNamed(t *testing.T) {
	t.Parallel()
	empty, ready := pgtest.Empty(t), pgtest.NewConfig(t)
	admin := open(t, empty)
	role := "role_of_" + empty.Database
	exec(t, admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'`)
	defer exec(t, admin, `DROP ROLE `+role)

	empty.User, empty.Password = role, "secret"
	_, err := schema.Apply(t.Context(), open(t, empty), schema.Options{})
	require.ErrorIs(t, err, schema.ErrPrivilege)
	require.ErrorContains(t, err, role)
	require.ErrorContains(t, err, empty.Database)

	ready.User, ready.Password = role, "secret"
	require.ErrorIs(t, schema.Check(t.Context(), open(t, ready)), schema.ErrPrivilege)
}

// Generation 1 had an index that cost leases and acks their HOT updates.
func TestTheIndexOfWorkersIsDropped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `CREATE INDEX idx_log_consumers_worker ON queen.log_consumers (worker_id) WHERE worker_id IS NOT NULL`)
	for range 2 {
		_, err := schema.Apply(t.Context(), db, schema.Options{Force: true})
		require.NoError(t, err)
		require.True(t, scan[bool](t, db, `SELECT to_regclass('queen.idx_log_consumers_worker') IS NULL`))
	}
}
