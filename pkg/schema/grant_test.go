package schema_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
)

// newRole makes a role that owns nothing, and a way in as it.
func newRole(t *testing.T, owner *pgdb.DB, name string) *pgdb.DB {
	t.Helper()
	cfg := owner.Config()
	name += "_of_" + cfg.Database
	quoted := pgx.Identifier{name}.Sanitize()
	exec(t, owner, `CREATE ROLE `+quoted+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + quoted, `DROP ROLE ` + quoted} {
			if err := tryExec(context.Background(), owner, sql); err != nil {
				t.Error(err)
			}
		}
	})
	cfg.User, cfg.Password = name, "secret"
	return open(t, cfg)
}

// held is what a role holds of its own, one line an object.
const held = `
SELECT COALESCE(string_agg(line, E'\n' ORDER BY line COLLATE "C"), '') FROM (
	SELECT kind || ' ' || object || ': ' || string_agg(privilege || CASE WHEN grantable THEN ' (may grant it)' ELSE '' END, ', ' ORDER BY privilege) AS line
	FROM (
		SELECT 'database' AS kind, '-' AS object, x.privilege_type AS privilege, x.is_grantable AS grantable, x.grantee
		FROM pg_database AS d CROSS JOIN aclexplode(d.datacl) AS x WHERE d.datname = current_database() UNION ALL
		SELECT 'schema', n.nspname, x.privilege_type, x.is_grantable, x.grantee FROM pg_namespace AS n CROSS JOIN aclexplode(n.nspacl) AS x UNION ALL
		SELECT CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, c.oid::regclass::text, x.privilege_type, x.is_grantable, x.grantee
		FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS x UNION ALL
		SELECT DISTINCT 'functions of', p.pronamespace::regnamespace::text, x.privilege_type, x.is_grantable, x.grantee FROM pg_proc AS p CROSS JOIN aclexplode(p.proacl) AS x
	) AS all_of_them
	WHERE grantee = (SELECT oid FROM pg_roles WHERE rolname = $1)
	GROUP BY kind, object
) AS lines`

// shut takes from PUBLIC what it holds, as a careful operator does.
const shut = `
REVOKE ALL ON SCHEMA queen, queen_streams FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA queen, queen_streams FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA queen, queen_streams FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA queen, queen_streams FROM PUBLIC;
DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); END $$`

// tryExec is exec that may fail.
func tryExec(ctx context.Context, db *pgdb.DB, sql string) error {
	return db.Do(ctx, "exec", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	})
}

func TestTheRuntimeRoleHoldsWhatTheGoldenFileSays(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{"grants": "", "grants_without_public": shut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			role := newRole(t, db, "runtime").Config().User
			if prepare != "" {
				exec(t, db, prepare)
			}
			granted, err := schema.Grant(t.Context(), db, role)
			require.NoError(t, err)
			require.NotEmpty(t, granted)
			got := scan[string](t, db, held, role) + "\n"
			path := filepath.Join("testdata", name+".golden.txt")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "-update after looking at it: nothing but what the services need")

			again, err := schema.Grant(t.Context(), db, role)
			require.NoError(t, err)
			require.Empty(t, again, "nothing is missing any more")
		})
	}
}

func TestEveryTableIsDecidedOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	require.Empty(t, scan[string](t, db, `SELECT COALESCE(string_agg(c.oid::regclass::text, ','), '') FROM pg_class AS c
		WHERE c.relnamespace::regnamespace::text IN ('queen', 'queen_streams') AND c.relkind IN ('r', 'p', 'v', 'm')
		  AND c.oid NOT IN (SELECT r_table::regclass FROM queen.runtime_tables_v1())`))
}

func TestTheRuntimeRoleMayDoNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	runtime := newRole(t, db, "runtime")
	_, err := schema.Grant(t.Context(), db, runtime.Config().User)
	require.NoError(t, err)
	require.NoError(t, schema.Check(t.Context(), runtime))
	_, err = schema.Apply(t.Context(), runtime, schema.Options{})
	require.NoError(t, err, "nothing is to be done")
	_, err = schema.Apply(t.Context(), runtime, schema.Options{Force: true})
	require.ErrorIs(t, err, schema.ErrPrivilege)
	for _, statement := range []string{
		`CREATE TABLE queen.t ()`, `CREATE TABLE queen_streams.t ()`, `CREATE SCHEMA mine`,
		`CREATE FUNCTION queen.f() RETURNS INT LANGUAGE sql AS 'SELECT 1'`,
		`CREATE OR REPLACE FUNCTION queen.runtime_tables_v1() RETURNS TABLE (r_table TEXT, r_changes TEXT[]) LANGUAGE sql AS 'SELECT NULL, NULL'`,
		`ALTER TABLE queen.queues ADD COLUMN c INT`, `DROP TABLE queen.queues`, `DROP SCHEMA queen CASCADE`,
		`TRUNCATE queen.log_segments`, `BEGIN; LOCK TABLE queen.schema_files IN EXCLUSIVE MODE`, `CREATE INDEX ON queen.queues (task)`,
		`CREATE TRIGGER t BEFORE INSERT ON queen.queues FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
		`UPDATE queen.schema_files SET generation = 99`, `DELETE FROM queen.message_traces`, `UPDATE queen.log_segments SET created_at = now()`,
		`SELECT setval('queen.kv_version_seq', 1)`, `CREATE ROLE other`,
		`SELECT queen.grant_runtime_v1('pg_monitor')`, `SELECT pg_ls_waldir()`, `COPY queen.queues TO PROGRAM 'true'`,
	} {
		require.ErrorContains(t, tryExec(t.Context(), runtime, statement), "42501", statement)
	}
}

func TestALostPrivilegeComesBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	runtime := newRole(t, db, "runtime")
	role := pgx.Identifier{runtime.Config().User}.Sanitize()
	_, err := schema.Grant(t.Context(), db, runtime.Config().User)
	require.NoError(t, err)
	exec(t, db, `REVOKE INSERT, DELETE ON queen.queues FROM `+role)
	exec(t, db, `REVOKE EXECUTE ON FUNCTION queen.log_retention_plan_v1() FROM PUBLIC`)
	granted, err := schema.Grant(t.Context(), db, runtime.Config().User)
	require.NoError(t, err)
	require.Equal(t, []string{
		`GRANT INSERT, DELETE ON TABLE queen.queues TO ` + runtime.Config().User,
		`GRANT EXECUTE ON FUNCTION queen.log_retention_plan_v1() TO ` + runtime.Config().User,
	}, granted)
}

func TestARoleThatLacksNothingIsGrantedNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	group := newRole(t, db, "group").Config().User
	member := newRole(t, db, "member").Config().User
	_, err := schema.Grant(t.Context(), db, group)
	require.NoError(t, err)
	exec(t, db, `GRANT `+group+` TO `+member)
	exec(t, db, refuseDDL)
	granted, err := schema.Grant(t.Context(), db, db.Config().User, group, member)
	exec(t, db, `DROP EVENT TRIGGER refuse`)
	require.NoError(t, err)
	require.Empty(t, granted)
}

func TestNamesOfRolesAreQuoted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	odd := newRole(t, db, `Ru"n; DROP TABLE 'x' --ü`)
	granted, err := schema.Grant(t.Context(), db, odd.Config().User)
	require.NoError(t, err)
	require.NotEmpty(t, granted)
	require.NoError(t, schema.Check(t.Context(), odd))
}

func TestAGrantThatCannotBeGivenSaysWhy(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	one := newRole(t, db, "one")
	_, err := schema.Grant(t.Context(), db, one.Config().User, "nobody_of_that_name")
	require.ErrorIs(t, err, schema.ErrNoRole)
	require.ErrorContains(t, err, `"nobody_of_that_name"`)

	other := newRole(t, db, "other").Config().User
	_, err = schema.Grant(t.Context(), one, other)
	require.ErrorIs(t, err, schema.ErrPrivilege)
	require.ErrorContains(t, err, other)
	require.ErrorContains(t, err, `"`+one.Config().User+`" must own what it grants`)
}

func TestManyAtOnceGrantTheSame(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := newRole(t, db, "runtime").Config().User
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			_, err := schema.Grant(t.Context(), db, role)
			return err
		})
	}
	require.NoError(t, g.Wait())
}
