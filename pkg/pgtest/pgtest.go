package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/pgdb"
)

const (
	// urlVariable names an existing server to use instead of a private one.
	urlVariable = "QUEEN_TEST_PG_URL"

	poolSize         = 8 // many tests run at once; the server has 200 connections
	statementTimeout = 30000
	setUpTimeout     = 2 * time.Minute
)

// shared is the one server of this test binary, started by its first user.
//
//nolint:gochecknoglobals // a test binary has one server, and testing gives no other place for it
var shared struct {
	once   sync.Once
	err    error
	server *server
}

// Main runs the tests of a package, stops its server afterwards, and fails when
// a goroutine is left:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	err := stopShared()
	if code == 0 {
		err = errors.Join(err, goleak.Find())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return max(code, 1)
	}
	return code
}

func stopShared() error {
	if shared.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	return shared.server.close(ctx)
}

func start(t testing.TB) *server {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
		defer cancel()
		shared.server, shared.err = startServer(ctx, os.Getenv(urlVariable))
	})
	require.NoError(t, shared.err, "start the test server")
	return shared.server
}

// New opens a fresh database that has the schema. It is dropped with the test.
func New(t testing.TB) *pgdb.DB {
	t.Helper()
	db, err := pgdb.Open(context.Background(), NewConfig(t))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

// NewConfig is the address of a fresh database that has the schema. Its
// sessions have an empty search path, so that a missing qualifier fails.
func NewConfig(t testing.TB) pgdb.Config {
	t.Helper()
	s := start(t)
	return create(t, s, "TEMPLATE "+s.template)
}

// Empty is the address of a fresh database without the schema.
func Empty(t testing.TB) pgdb.Config {
	t.Helper()
	return create(t, start(t), "TEMPLATE template0")
}

func create(t testing.TB, s *server, how string) pgdb.Config {
	t.Helper()
	name := s.prefix + "_" + strconv.FormatInt(s.next.Add(1), 10)
	ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
	defer cancel()
	require.NoError(t, s.create(ctx, name, how), "create a test database")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), setUpTimeout)
		defer cancel()
		require.NoError(t, s.drop(ctx, name))
	})
	return s.config(name)
}
