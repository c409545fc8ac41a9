package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
)

func text(t *testing.T, db *pgdb.DB, sql string, args ...any) string {
	t.Helper()
	var v string
	require.NoError(t, db.Do(t.Context(), "read", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&v)
	}))
	return v
}

func TestEachCallerHasADatabaseOfItsOwnWithTheSchema(t *testing.T) {
	t.Parallel()
	one, two := pgtest.New(t), pgtest.New(t)
	require.NotEqual(t, one.Config().Database, two.Config().Database)
	const insert = `INSERT INTO queen.system_state (key, value) VALUES ('k', '1') RETURNING key`
	require.Equal(t, "k", text(t, one, insert))
	require.Equal(t, "k", text(t, two, insert))
}

func TestAMissingQualifierFails(t *testing.T) {
	t.Parallel()
	require.Equal(t, `""`, text(t, pgtest.New(t), "SHOW search_path"))
}

func TestEmptyHasNoSchema(t *testing.T) {
	t.Parallel()
	db, err := pgdb.Open(t.Context(), pgtest.Empty(t))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	require.Equal(t, "0", text(t, db, "SELECT count(*)::text FROM pg_namespace WHERE nspname LIKE 'queen%'"))
}

//nolint:tparallel // the subtest must end before its parent looks
func TestADatabaseIsDroppedWithItsTest(t *testing.T) {
	t.Parallel()
	witness := pgtest.New(t)
	var name string
	t.Run("short-lived", func(t *testing.T) {
		name = pgtest.New(t).Config().Database
		require.Equal(t, "1", text(t, witness, "SELECT count(*)::text FROM pg_database WHERE datname = $1", name))
	})
	require.Equal(t, "0", text(t, witness, "SELECT count(*)::text FROM pg_database WHERE datname = $1", name))
}
