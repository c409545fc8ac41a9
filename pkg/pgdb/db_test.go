package pgdb_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
)

func TestSessionsHaveTheirSettings(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.ApplicationName, cfg.StatementTimeout, cfg.EmptiedSearchPath = "queen-broker", 7000, false
	db := open(t, cfg)
	own, err := db.Session(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = own.Close(context.Background()) })
	for name, want := range map[string]string{
		"TimeZone": "UTC", "tcp_keepalives_idle": "5", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
		"client_connection_check_interval": "2s", "idle_in_transaction_session_timeout": "10s",
		"statement_timeout": "12s", "application_name": "queen-broker", "search_path": `"$user", public`,
	} {
		require.Equal(t, want, mustGet(t, db, "SHOW "+name), name)
		var got string
		require.NoError(t, own.QueryRow(t.Context(), "SHOW "+name).Scan(&got))
		require.Equal(t, want, got, "%s of a session of its own", name)
	}
}

// busy tells whether the server still runs a statement of the application.
func busy(t *testing.T, witness *pgdb.DB, application string) string {
	t.Helper()
	return mustGet(t, witness, `SELECT count(*)::text FROM pg_stat_activity
		WHERE application_name = $1 AND state = 'active'`, application)
}

func TestADeadlineCancelsTheStatementOnTheServer(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.ApplicationName, cfg.StatementTimeout = "deadline", 100
	db, witness := open(t, cfg), pgtest.New(t)

	_, err := get(t.Context(), db, "SELECT pg_sleep(300)::text")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "get: statement deadline of 100ms")
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, "the server itself ended the statement")
	require.Equal(t, "57014", pg.Code)
	require.Eventually(t, func() bool { return busy(t, witness, "deadline") == "0" }, time.Minute, time.Millisecond)
}

func TestACallerThatLeavesCancelsTheStatementOnTheServer(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.ApplicationName = "leaving"
	db, witness := open(t, cfg), pgtest.New(t)
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := get(ctx, db, "SELECT pg_sleep(300)::text")
		done <- err
	}()
	require.Eventually(t, func() bool { return busy(t, witness, "leaving") == "1" }, time.Minute, time.Millisecond)
	cancel(gone)
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, gone)
	require.Eventually(t, func() bool { return busy(t, witness, "leaving") == "0" }, time.Minute, time.Millisecond)
}

func TestADeadlineThatFnSurvivesStillCostsTheConnection(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize = 2
	db := open(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var first uint32
	require.NoError(t, db.Do(ctx, "ignore the end", func(_ context.Context, conn *pgx.Conn) error {
		first = conn.PgConn().PID()
		cancel()
		return nil
	}))
	require.NoError(t, db.Do(t.Context(), "next", func(_ context.Context, conn *pgx.Conn) error {
		require.NotEqual(t, first, conn.PgConn().PID())
		return nil
	}))
}

func TestDeadlinesDoNotLeakConnections(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.ApplicationName, cfg.PoolSize, cfg.StatementTimeout = "leak", 2, 20
	db, witness := open(t, cfg), pgtest.New(t)
	for range 10 {
		_, err := get(t.Context(), db, "SELECT pg_sleep(300)::text")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.Eventually(t, func() bool { return db.Stat().InUse == 0 }, time.Minute, time.Millisecond)
	require.LessOrEqual(t, db.Stat().Size, 2)
	require.Eventually(t, func() bool {
		return mustGet(t, witness, `SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'leak'`) <= "2"
	}, time.Minute, time.Millisecond)
}

func TestAnExhaustedPoolIsErrPool(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize, cfg.AcquireTimeout = 2, 3*time.Second // making a connection counts
	db := open(t, cfg)
	hold := func(ctx context.Context, _ *pgx.Conn) error {
		return db.Do(ctx, "inner", func(ctx context.Context, _ *pgx.Conn) error {
			_, err := get(ctx, db, "SELECT '1'")
			return err
		})
	}
	err := db.Do(t.Context(), "outer", hold)
	require.ErrorIs(t, err, pgdb.ErrPool)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "outer: inner: get: pool: no connection within 3s")
	require.Zero(t, db.Stat().Waiting)
	require.Positive(t, db.Stat().Waits)
	require.NoError(t, db.Ping(t.Context()), "and recovers")
}

func TestStatCountsWhoWaits(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize = 2
	db := open(t, cfg)
	release, done := make(chan struct{}), make(chan error, 3)
	for range 3 {
		go func() {
			done <- db.Do(t.Context(), "hold", func(context.Context, *pgx.Conn) error { <-release; return nil })
		}()
	}
	require.Eventually(t, func() bool {
		s := db.Stat()
		return s.InUse == 2 && s.Waiting == 1
	}, time.Minute, time.Millisecond)
	require.Equal(t, 2, db.Stat().Max)
	close(release)
	for range 3 {
		require.NoError(t, <-done)
	}
	require.Equal(t, 2, db.Stat().Idle)
}

func TestAFullPoolTurnsAwayWhoIsTooMany(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize, cfg.MaxWaiting, cfg.AcquireTimeout = 2, 1, time.Minute
	db := open(t, cfg)
	release := occupy(t, db, 2)
	waits := make(chan error, 1)
	go func() {
		_, err := get(t.Context(), db, "SELECT 'late'")
		waits <- err
	}()
	require.Eventually(t, func() bool { return db.Stat().Waiting == 1 }, time.Minute, time.Millisecond)
	_, err := get(t.Context(), db, "SELECT 'too many'")
	require.ErrorIs(t, err, pgdb.ErrExhausted)
	require.ErrorIs(t, err, pgdb.ErrPool)
	release()
	require.NoError(t, <-waits, "who may wait gets a connection")
	_, err = get(t.Context(), db, "SELECT 'again'")
	require.NoError(t, err)
}

func TestAServerThatEndsStatementsKeepsTheSession(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.StatementTimeout, cfg.ServerEnds, cfg.PoolSize = 50, true, 2
	db := open(t, cfg)
	require.Equal(t, "50ms", mustGet(t, db, "SHOW statement_timeout"))
	session := mustGet(t, db, "SELECT pg_backend_pid()::text")
	_, err := get(t.Context(), db, "SELECT pg_sleep(300)::text")
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "57014", pg.Code)
	require.NotErrorIs(t, err, context.DeadlineExceeded, "the client's deadline is later")
	require.Equal(t, session, mustGet(t, db, "SELECT pg_backend_pid()::text"))
}

func TestAnUnreachableServerIsErrPool(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.Host = "/nowhere"
	require.ErrorIs(t, open(t, cfg).Ping(t.Context()), pgdb.ErrPool)

	cfg = pgtest.Empty(t)
	cfg.Database = "no_such_database"
	err := open(t, cfg).Ping(t.Context())
	require.ErrorIs(t, err, pgdb.ErrPool)
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, "the reason can be told apart")
	require.Equal(t, "3D000", pg.Code)
}

func TestATerminatedConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.PoolSize = 2
	db, witness := open(t, cfg), pgtest.New(t)
	first := mustGet(t, db, backendPID)
	_, err := get(t.Context(), db, `SELECT pg_terminate_backend(pg_backend_pid())::text`)
	require.Error(t, err)
	second := mustGet(t, db, backendPID)
	require.NotEqual(t, first, second)

	// Killed while idle: the statement that finds out may fail, the next must not.
	require.Equal(t, "true", mustGet(t, witness, `SELECT pg_terminate_backend($1::text::int, 60000)::text`, second))
	_, _ = get(t.Context(), db, backendPID)
	require.NotEqual(t, second, mustGet(t, db, backendPID))
}

// pair are the server's ids of two sessions of a pool.
func pair(t *testing.T, db *pgdb.DB) []string {
	t.Helper()
	pids := make([]string, 2)
	require.NoError(t, db.Do(t.Context(), "outer", func(ctx context.Context, conn *pgx.Conn) error {
		pids[1] = mustGet(t, db, backendPID)
		return conn.QueryRow(ctx, backendPID).Scan(&pids[0])
	}))
	return pids
}

// demoted makes a session read-only and writes with it.
func demoted(t *testing.T, db *pgdb.DB) {
	t.Helper()
	err := db.Do(t.Context(), "write", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET default_transaction_read_only = on`)
		require.NoError(t, err)
		_, err = conn.Exec(ctx, `CREATE TABLE public.t ()`)
		return err
	})
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "25006", pg.Code)
}

func TestADemotedPrimaryEmptiesThePool(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	before := pair(t, db)
	began := time.Now()
	demoted(t, db)
	after := pair(t, db)
	for _, pid := range after {
		require.NotContains(t, before, pid)
	}

	// It is emptied no more than once a second, and again as long as the server only reads.
	resets, again := 0, after
	for range 20 {
		demoted(t, db)
		if pids := pair(t, db); !slices.Contains(again, pids[0]) && !slices.Contains(again, pids[1]) {
			resets, again = resets+1, pids
		}
	}
	require.LessOrEqual(t, resets, int(time.Since(began).Seconds()))
	require.Eventually(t, func() bool {
		demoted(t, db)
		pids := pair(t, db)
		return !slices.Contains(again, pids[0]) && !slices.Contains(again, pids[1])
	}, time.Minute, 10*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(began), time.Duration(resets+1)*time.Second)
}

func TestAnErrorOfTheCallersOwnKeepsTheConnection(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	first := mustGet(t, db, backendPID)
	refused := errors.New("refused")
	require.ErrorIs(t, db.Do(t.Context(), "work", func(context.Context, *pgx.Conn) error { return refused }), refused)
	_, err := get(t.Context(), db, `SELECT 1/0 || ''`)
	require.Error(t, err)
	require.Equal(t, first, mustGet(t, db, backendPID))
}

func TestATransactionLeftOpenIsNotRecycled(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	first := mustGet(t, db, backendPID)
	require.NoError(t, db.Do(t.Context(), "forget", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "BEGIN")
		return err
	}))
	require.NotEqual(t, first, mustGet(t, db, backendPID))
}

func TestAReplacedFunctionIsCalledAgain(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Empty(t))
	other := open(t, db.Config())
	define := func(columns, values string) {
		require.NoError(t, other.Do(t.Context(), "define", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.PgConn().Exec(ctx, `BEGIN; DROP FUNCTION IF EXISTS public.f();
				CREATE FUNCTION public.f() RETURNS TABLE (`+columns+`) LANGUAGE sql AS 'SELECT `+values+`'; COMMIT`).ReadAll()
			return err
		}))
	}
	define("a TEXT", "''one''::text")
	first := mustGet(t, db, backendPID)
	require.Equal(t, "one", mustGet(t, db, "SELECT * FROM public.f() AS x (a)"))
	calls := 0
	define("a INT", "2")
	require.NoError(t, db.Do(t.Context(), "call", func(ctx context.Context, conn *pgx.Conn) error {
		calls++
		var n int
		err := conn.QueryRow(ctx, "SELECT * FROM public.f() AS x (a)").Scan(&n)
		if err == nil {
			require.Equal(t, 2, n)
		}
		return err
	}))
	require.Equal(t, 2, calls)
	require.Equal(t, first, mustGet(t, db, backendPID), "on the same connection")
}

func TestSpansCarryTheNameOfTheWork(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracers := trace.NewTracerProvider(trace.WithSyncer(spans))
	db := open(t, pgtest.Empty(t), pgdb.WithTelemetry(tracers, nil))
	ctx, root := tracers.Tracer("test").Start(t.Context(), "root")
	_, err := get(ctx, db, "SELECT $1::text", "a secret")
	require.NoError(t, err)
	root.End()
	var names []string
	for _, s := range spans.GetSpans() {
		names = append(names, s.Name)
		for _, a := range s.Attributes {
			require.NotContains(t, a.Value.String(), "a secret")
		}
	}
	require.Contains(t, names, "get")
}

// A session that holds a lock survives its own limit, and nothing else.
func TestWorkOnASessionOfOnesOwn(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	cfg.StatementTimeout = 20_000
	db := open(t, cfg)
	own, err := db.Session(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = own.Close(context.Background()) })
	run := func(ctx context.Context, sql string) error {
		return db.DoOn(ctx, own, "own work", func(ctx context.Context, conn *pgx.Conn) error {
			require.Same(t, own, conn)
			_, err := conn.Exec(ctx, sql)
			return err
		})
	}
	require.NoError(t, run(t.Context(), "SET statement_timeout = '20ms'"))
	err = run(t.Context(), "SELECT pg_sleep(300)")
	require.ErrorContains(t, err, "own work")
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "57014", pg.Code)
	require.NoError(t, run(t.Context(), "SET statement_timeout = 0"), "it is still open")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, run(ctx, "SELECT pg_sleep(300)"), context.DeadlineExceeded)
	require.True(t, own.IsClosed(), "a cancel request may still be on its way")
}
