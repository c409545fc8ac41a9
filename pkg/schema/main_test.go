package schema_test

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

func open(t *testing.T, cfg pgdb.Config) *pgdb.DB {
	t.Helper()
	db, err := pgdb.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

// exec runs one or more statements.
func exec(t *testing.T, db *pgdb.DB, sql string) {
	t.Helper()
	require.NoError(t, db.Do(t.Context(), "exec", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
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

// session is a connection with an open transaction in which sql has run.
func session(t *testing.T, db *pgdb.DB, sql string) *pgx.Conn {
	t.Helper()
	conn, err := db.Session(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.PgConn().Exec(t.Context(), "SET idle_in_transaction_session_timeout = 0; BEGIN; "+sql).ReadAll()
	if err == nil && conn.PgConn().TxStatus() != 'T' { // the texts above are one implicit transaction
		_, err = conn.Exec(t.Context(), "BEGIN")
	}
	require.NoError(t, err)
	return conn
}
