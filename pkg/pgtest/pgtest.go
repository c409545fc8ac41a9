package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/pkg/schema"
)

// urlVariable names an existing server to use instead of a private one.
const urlVariable = "QUEEN_TEST_PG_URL"

const (
	poolSize      = 8 // many tests run at once; the server has 200 connections
	setUpTimeout  = 2 * time.Minute
	cloneAttempts = 50
)

// shared is the one server of this test binary, started by its first user.
//
//nolint:gochecknoglobals // a test binary has one server, and testing gives no other place for it
var shared struct {
	once   sync.Once
	err    error
	server *pglocal.Server // nil with a given server
	dir    string
	admin  *pgx.ConnConfig
	prefix string
	next   atomic.Int64
	clones sync.Mutex // CREATE DATABASE allows one user of the template at a time
}

// Main runs the tests of a package and stops its server afterwards:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	if shared.server != nil {
		if err := shared.server.StopImmediate(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
		}
		_ = pglocal.Remove(ctx, shared.dir)
	}
	return code
}

func startShared() error {
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	url := os.Getenv(urlVariable)
	if url == "" {
		dir, err := os.MkdirTemp("", "queen-pgtest-")
		if err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o755); err != nil { // the server runs as another user under root
			return err
		}
		shared.dir = filepath.Join(dir, "postgres")
		shared.server, err = pglocal.Start(ctx, pglocal.Options{Dir: shared.dir, Fast: true})
		if err != nil {
			return err
		}
		url = shared.server.URL("postgres")
	}
	var err error
	if shared.admin, err = pgx.ParseConfig(url); err != nil {
		return fmt.Errorf("%s: %w", urlVariable, err)
	}
	shared.prefix = "queen_test_" + strconv.Itoa(os.Getpid())
	return makeTemplate(ctx)
}

// makeTemplate creates the database that clones are made of.
func makeTemplate(ctx context.Context) error {
	if err := dropLeftovers(ctx); err != nil {
		return err
	}
	if err := execAdmin(ctx, "CREATE DATABASE "+templateName()); err != nil {
		return err
	}
	db, err := pgdb.Open(ctx, configFor(templateName()))
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = schema.Apply(ctx, db, schema.Options{})
	return err
}

func templateName() string { return shared.prefix + "_template" }

// dropLeftovers removes databases of earlier test processes on a given server.
func dropLeftovers(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, shared.admin.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database AS d
		WHERE datname LIKE 'queen\_test\_%' AND NOT EXISTS (SELECT 1 FROM pg_stat_activity AS a WHERE a.datname = d.datname)
		  AND datname !~ '_template$'`)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, n := range names {
		// Another process may be about to connect to its own; it then makes a new one.
		_, _ = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+n)
	}
	_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+templateName())
	return err
}

func execAdmin(ctx context.Context, sql string) error {
	conn, err := pgx.ConnectConfig(ctx, shared.admin.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

func configFor(database string) pgdb.Config {
	return pgdb.Config{
		Host: shared.admin.Host, Port: int(shared.admin.Port),
		User: shared.admin.User, Password: config.Secret(shared.admin.Password), Database: database,
		UseSSL: shared.admin.TLSConfig != nil, SSLVerify: false,
		PoolSize: poolSize, StatementTimeout: 30000, ApplicationName: "queen-test", EmptiedSearchPath: true,
	}
}

// New opens a fresh database that has the schema. It is dropped with the test.
func New(t testing.TB) *pgdb.DB {
	t.Helper()
	return open(t, NewConfig(t))
}

// NewConfig is the address of a fresh database that has the schema.
func NewConfig(t testing.TB) pgdb.Config {
	t.Helper()
	return create(t, " TEMPLATE "+templateNameAfterStart(t))
}

// Empty is the address of a fresh database without the schema.
func Empty(t testing.TB) pgdb.Config {
	t.Helper()
	templateNameAfterStart(t)
	return create(t, "")
}

func open(t testing.TB, cfg pgdb.Config) *pgdb.DB {
	t.Helper()
	db, err := pgdb.Open(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

func templateNameAfterStart(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.err = startShared() })
	require.NoError(t, shared.err, "start the test server")
	return templateName()
}

func create(t testing.TB, template string) pgdb.Config {
	t.Helper()
	name := shared.prefix + "_" + strconv.FormatInt(shared.next.Add(1), 10)
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	require.NoError(t, createDatabase(ctx, name+template), "create a test database")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
		defer cancel()
		require.NoError(t, execAdmin(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"))
	})
	return configFor(name)
}

// createDatabase retries while the template is in use (55006): autovacuum may
// look at it at any time.
func createDatabase(ctx context.Context, rest string) error {
	shared.clones.Lock()
	defer shared.clones.Unlock()
	var err error
	for range cloneAttempts {
		err = execAdmin(ctx, "CREATE DATABASE "+rest)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55006" {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return err
}
