package boot

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/telemetry"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func open(t *testing.T, cfg pgdb.Config, wait time.Duration) *Database {
	t.Helper()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Service: "test"})
	require.NoError(t, err)
	d, err := Open(t.Context(), cfg, wait, tel, logtest.New(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		d.Close()
		require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context())))
	})
	require.NoError(t, d.Observe(tel.Meters.Meter("test")))
	return d
}

// unreachable is the address of a port on which nobody listens.
func unreachable(t *testing.T) pgdb.Config {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return pgdb.Config{Host: "127.0.0.1", Port: ln.Addr().(*net.TCPAddr).Port, User: "u", Database: "d", PoolSize: 2, StatementTimeout: 1000}
}

func TestConnectGivesUpOnAnUnreachableServer(t *testing.T) {
	t.Parallel()
	err := open(t, unreachable(t), 300*time.Millisecond).Connect(t.Context())
	require.ErrorIs(t, err, pgdb.ErrPool)
	require.ErrorContains(t, err, "PostgreSQL at 127.0.0.1:")
	require.ErrorContains(t, err, "did not answer within 300ms (PG_URL, or PG_HOST and PG_PORT; QUEEN_BOOT_DB_WAIT_MS is how long to wait)")
}

func TestSchemaIsInstalledOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.Empty(t), 30*time.Second)
	require.NoError(t, d.Connect(t.Context()))
	require.ErrorIs(t, d.Usable(t.Context()), schema.ErrNotReady)
	require.NoError(t, d.InstallSchema(t.Context()))
	require.NoError(t, d.Usable(t.Context()))
	require.NoError(t, d.RequireSchema(t.Context()))
}

func TestRequireSchemaGivesUp(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.Empty(t), 200*time.Millisecond)
	require.ErrorIs(t, d.RequireSchema(t.Context()), schema.ErrNotReady)
}

func TestAwaitSchemaOutlivesTheWait(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Empty(t)
	d := open(t, cfg, time.Millisecond)
	log, lines := logtest.NewRecorder()
	d.log = log
	waited := make(chan error, 1)
	go func() { waited <- d.AwaitSchema(t.Context()) }()
	require.Eventually(t, func() bool { return len(lines.String()) > 0 }, 10*time.Second, time.Millisecond)
	require.Contains(t, lines.String(), "component=schema")
	require.NoError(t, open(t, cfg, 30*time.Second).InstallSchema(t.Context()))
	require.NoError(t, <-waited)
}

func TestAwaitSchemaEndsWhenAskedTo(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.Empty(t), time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- d.AwaitSchema(ctx) }()
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
}

// TestDatabasesThatNeverFitAreRefusedAtOnce writes the record of a later build.
func TestDatabasesThatNeverFitAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.NewConfig(t), time.Minute)
	require.NoError(t, d.Do(t.Context(), "age", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `UPDATE queen.schema_files SET generation = $1, min_compatible = $1`, schema.Generation+1)
		return err
	}))
	for name, call := range map[string]func(context.Context) error{
		"install": func(ctx context.Context) error { return d.InstallSchema(ctx) },
		"await":   d.AwaitSchema, "require": d.RequireSchema, "usable": d.Usable,
	} {
		require.ErrorIs(t, call(t.Context()), schema.ErrTooNew, name)
	}
}

func TestRetryRepeatsOnlyWhatMayHeal(t *testing.T) {
	t.Parallel()
	d := open(t, unreachable(t), time.Minute)
	calls := 0
	err := d.Retry(t.Context(), func(context.Context) error {
		if calls++; calls < 3 {
			return pgdb.ErrPool
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 3, calls)
	wrong := &pgconn.PgError{Code: "22023"}
	require.ErrorIs(t, d.Retry(t.Context(), func(context.Context) error { calls++; return wrong }), wrong)
	require.Equal(t, 4, calls)
}

func TestDisconnectDoesNotWaitForeverForAStatement(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.NewConfig(t), time.Minute)
	held, release := make(chan struct{}), make(chan struct{})
	finished := make(chan error, 1)
	go func() {
		finished <- d.Do(t.Context(), "hold", func(context.Context, *pgx.Conn) error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	boom := errors.New("boom")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(boom)
	require.ErrorIs(t, d.Disconnect(ctx), boom)
	close(release)
	require.NoError(t, <-finished)
	require.NoError(t, d.Disconnect(t.Context()))
}

func TestPersistTriesUntilTimeIsUp(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		wait     time.Duration
		heals    bool
		failures int // before a success
		want     error
		tries    int
	}{
		"at once":             {time.Minute, true, 0, nil, 1},
		"after a while":       {time.Minute, true, 5, nil, 6},
		"no time at all":      {0, true, 1 << 30, boom, 1},
		"cannot heal":         {time.Minute, false, 1 << 30, boom, 1},
		"for ever":            {forever, true, 1000, nil, 1001},
		"time runs out":       {time.Second, true, 1 << 30, boom, 4},
		"success without any": {0, true, 0, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				d := &Database{log: logtest.New(t)}
				err := d.persist(t.Context(), tc.wait, "waiting", func(ctx context.Context) error {
					_, bounded := ctx.Deadline()
					require.True(t, bounded)
					tries++
					if tries > tc.failures {
						return nil
					}
					return boom
				}, func(error) bool { return tc.heals })
				require.ErrorIs(t, err, tc.want)
				require.Equal(t, tc.tries, tries)
			})
		})
	}
}

func TestPersistRepeatsItselfInTheLogNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewRecorder()
		d := &Database{log: log}
		until := time.Now().Add(time.Hour)
		require.NoError(t, d.persist(t.Context(), forever, "waiting", func(context.Context) error {
			if time.Now().Before(until) {
				return errors.New("boom")
			}
			return nil
		}, func(error) bool { return true }))
		said := strings.Count(lines.String(), "msg=waiting")
		require.Greater(t, said, 200)
		require.LessOrEqual(t, said, 361, "once in 10 s")
	})
}

func TestARoleThatDoesNotExistEndsTheInstallationAtOnce(t *testing.T) {
	t.Parallel()
	d := open(t, pgtest.NewConfig(t), time.Minute)
	err := d.InstallSchema(t.Context(), "nobody_of_that_name")
	require.ErrorIs(t, err, schema.ErrNoRole)
	require.ErrorContains(t, err, `QUEEN_RUNTIME_ROLE: grant to role "nobody_of_that_name"`)
}
