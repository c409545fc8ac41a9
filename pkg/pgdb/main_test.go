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

// occupy takes n connections, one after the other, until release.
func occupy(t *testing.T, db *pgdb.DB, n int) (release func()) {
	t.Helper()
	held, free, done := make(chan struct{}), make(chan struct{}), make(chan error, n)
	for range n {
		go func() {
			done <- db.Do(t.Context(), "hold", func(context.Context, *pgx.Conn) error {
				held <- struct{}{}
				<-free
				return nil
			})
		}()
		<-held
	}
	return func() {
		close(free)
		for range n {
			require.NoError(t, <-done)
		}
	}
}

const backendPID = `SELECT pg_backend_pid()::text`
