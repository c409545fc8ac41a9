package pglocal_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
)

func query(t *testing.T, s *pglocal.Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	var text string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&text))
	return text
}

func execute(t *testing.T, s *pglocal.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func start(t *testing.T, dir string) *pglocal.Server {
	t.Helper()
	s, err := pglocal.Start(t.Context(), pglocal.Options{Dir: dir, Logf: t.Logf, Fast: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

func TestDataIsKeptBetweenRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	execute(t, s, "CREATE TABLE kept AS SELECT 'yes' AS v")
	require.NoError(t, s.Stop(t.Context()))

	again := start(t, dir)
	require.Equal(t, "yes", query(t, again, "SELECT v FROM kept"))
}

func TestACrashLeavesAStartableCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	require.NoError(t, s.Kill())
	again := start(t, dir)
	require.Equal(t, "1", query(t, again, "SELECT '1'"))
}

func TestATakenPortIsNamed(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	_, err := pglocal.Start(t.Context(), pglocal.Options{Dir: t.TempDir(), Port: s.Port(), Fast: true})
	require.ErrorContains(t, err, "is taken")
}

func TestRemoveStartsEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	execute(t, s, "CREATE TABLE gone AS SELECT 1 AS v")
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, pglocal.Remove(t.Context(), dir))

	again := start(t, dir)
	require.Equal(t, "0", query(t, again, "SELECT count(*)::text FROM pg_tables WHERE tablename = 'gone'"))
}
