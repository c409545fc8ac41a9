package pgdb_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, cfg pgdb.Config, opts ...pgdb.Option) *pgdb.DB {
	t.Helper()
	db, err := pgdb.Open(t.Context(), cfg, opts...)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

// get runs one statement and returns its only value as text.
func get(ctx context.Context, db *pgdb.DB, sql string, args ...any) (string, error) {
	var v string
	err := db.Do(ctx, "get", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&v)
	})
	return v, err
}

func mustGet(t *testing.T, db *pgdb.DB, sql string, args ...any) string {
	t.Helper()
	v, err := get(t.Context(), db, sql, args...)
	require.NoError(t, err)
	return v
}

const backendPID = `SELECT pg_backend_pid()::text`
