package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/process"
)

const bootTimeout = 90 * time.Second

// Broker is one running broker, its database, and a client for it.
type Broker struct {
	*Client
	DB *Database

	path string
	env  []string
	proc *process.Process
	log  *outputLog
}

// Shared is the broker of the whole test binary. Tests keep out of each
// other's way by queue name.
func Shared(t testing.TB) *Broker {
	t.Helper()
	b, err := current.shared()
	require.NoError(t, err)
	b.log.watch(t)
	return b
}

func (s *suite) startShared() (*Broker, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	pg, err := s.postgres()
	if err != nil {
		return nil, err
	}
	db, err := pg.create(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.newBroker(ctx, db, []string{"DB_POOL_SIZE=30"})
	if err != nil {
		return nil, err
	}
	s.onClose(func() {
		s.fault(b.stop())
		s.fault(checkLog(b.log.text(0)))
		s.fault(db.checkDeadlocks(context.Background()))
		s.fault(pg.drop(context.Background(), db))
	})
	return b, nil
}

// Start runs a broker of its own, on a database of its own, for a test that
// configures or kills it. env entries are NAME=value.
func Start(t testing.TB, env ...string) *Broker {
	t.Helper()
	pg, err := current.postgres()
	require.NoError(t, err)
	db, err := pg.create(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := pg.drop(context.Background(), db); err != nil {
			t.Error(err)
		}
	})
	return startOn(t, db, env)
}

// Sibling runs another broker on the same database.
func (b *Broker) Sibling(t testing.TB, env ...string) *Broker {
	t.Helper()
	return startOn(t, b.DB, env)
}

// StartWithServer is Start with a PostgreSQL server of its own, for a test
// that stops the server.
func StartWithServer(t testing.TB, env ...string) (*Broker, *pglocal.Server) {
	t.Helper()
	server, err := current.startServer(t.Context(), "postgres-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	require.NoError(t, err)
	db, err := openDatabase(t.Context(), server.URL("postgres"), "postgres")
	require.NoError(t, err)
	t.Cleanup(db.Pool.Close)
	return startOn(t, db, env), server
}

func startOn(t testing.TB, db *Database, env []string) *Broker {
	t.Helper()
	b, err := current.newBroker(t.Context(), db, append([]string{"DB_POOL_SIZE=12"}, env...))
	require.NoError(t, err)
	b.log.watch(t)
	t.Cleanup(func() {
		if err := errors.Join(b.stop(), checkLog(b.log.text(0))); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (s *suite) newBroker(ctx context.Context, db *Database, env []string) (*Broker, error) {
	path, err := s.binary()
	if err != nil {
		return nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	b := &Broker{DB: db, path: path, log: &outputLog{}}
	b.Client = NewClient("http://127.0.0.1:" + strconv.Itoa(port))
	b.env = slices.Concat(cleanEnvironment(), db.env, []string{
		"PORT=" + strconv.Itoa(port), "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_OPS_ADDR=",
		"GORACE=halt_on_error=0",
	}, env)
	return b, b.boot(ctx)
}

// boot starts the process and waits until it is healthy.
func (b *Broker) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("no answer within %s", bootTimeout))
	defer cancel()
	proc, err := process.Start("broker", b.path, b.env, b.log)
	if err != nil {
		return err
	}
	b.proc = proc
	if err := proc.WaitHealthy(ctx, b.URL+"/health"); err != nil {
		proc.Kill()
		return fmt.Errorf("%w\n%s", err, b.log.text(0))
	}
	return nil
}

// Kill ends the broker as a power cut would (SIGKILL).
func (b *Broker) Kill() { b.proc.Kill() }

// Terminate asks the broker to stop (SIGTERM) and requires a clean exit.
func (b *Broker) Terminate(t testing.TB) {
	t.Helper()
	require.NoError(t, b.proc.Stop())
}

// Restart starts the broker again on the same port.
func (b *Broker) Restart(t testing.TB) {
	t.Helper()
	b.CloseIdle()
	require.NoError(t, b.boot(t.Context()))
}

// Run starts the binary once more with the given arguments and environment on
// top, waits for its end, and answers its output.
func (b *Broker) Run(t testing.TB, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.path, args...)
	cmd.Env = slices.Concat(b.env, env)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// stop ends the broker; one that was killed on purpose has ended already.
func (b *Broker) stop() error {
	defer b.CloseIdle()
	select {
	case <-b.proc.Done():
		return nil
	default:
	}
	if err := b.proc.Stop(); err != nil {
		return fmt.Errorf("stop the broker: %w\n%s", err, b.log.tail(0))
	}
	return nil
}

// cleanEnvironment is the caller's environment without anything that would
// configure a broker: the suite decides that alone.
func cleanEnvironment() []string {
	prefixes := []string{"PG", "QUEEN_", "POP_", "DB_", "DEFAULT_", "JWT_", "LOG_", "OTEL_", "PORT=", "FILE_BUFFER_DIR="}
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(kv, p) })
	})
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
