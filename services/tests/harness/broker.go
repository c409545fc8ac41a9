package harness

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
)

// Broker is one running broker with its database and a client for it, or several
// brokers on one database behind one client.
type Broker struct {
	*Client
	DB *Database
	// Each are the brokers that the client speaks to in turn: only itself, if it
	// is one.
	Each []*Broker

	*service // nil for several

	ops string // base address of the operations listener, where there is one

	// joining is what makes one more process a member of the brokers' pool.
	joining [][]string
}

// Setup says what to start for a test.
type Setup struct {
	// Brokers is the number of them on one database; 0 takes what the run says.
	Brokers int
	// Server gives the test a PostgreSQL server of its own.
	Server bool
	// MaxConnections is the number of connections of that server; 0 takes what is plenty.
	MaxConnections int
	// Owner has the services run as the owner of the schema, which brokers apply when
	// they start. Without it they run as a role that owns nothing.
	Owner bool
	// Proxy puts a proxy between the brokers and PostgreSQL.
	Proxy bool
	// Sweepers is the number of sweepers on the database. They and the brokers tell
	// each other of timers.
	Sweepers int
	// Ops gives every broker an operations listener, which Ready needs.
	Ops bool
	// Apart keeps brokers and sweepers from telling each other anything.
	Apart bool
	// Env holds NAME=value for every broker, SweeperEnv for every sweeper.
	Env, SweeperEnv []string
}

// Stage is what Setup asked for.
type Stage struct {
	*Broker
	Server *pglocal.Server // of the test's own, or nil
	Proxy  *Proxy          // or nil

	Sweepers []*Sweeper
}

// Shared is the installation of the whole test binary, of as many brokers as the
// run says. Tests keep out of each other's way by queue name.
func Shared(t testing.TB) *Broker {
	t.Helper()
	b, err := current.shared()
	require.NoError(t, err)
	b.watch(t)
	return b
}

func (s *suite) startShared() (*Broker, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	pg, err := s.postgres()
	if err != nil {
		return nil, err
	}
	db, err := s.createReady(ctx, pg, false)
	if err != nil {
		return nil, err
	}
	b, err := s.newBrokers(ctx, db, Setup{Env: []string{"DB_POOL_SIZE=30", "QUEEN_KV_POOL_SIZE=8"}})
	if err != nil {
		return nil, err
	}
	s.onClose(func() {
		s.fault(b.stop())
		s.fault(db.checkDeadlocks(context.Background()))
		s.fault(pg.drop(context.Background(), db))
	})
	return b, nil
}

// Start runs brokers of the test's own, as many as the run says, on a database
// of their own. env entries are NAME=value.
func Start(t testing.TB, env ...string) *Broker {
	t.Helper()
	return StartSetup(t, Setup{Env: env}).Broker
}

// StartOne is Start for a test of one broker: it ends the broker, looks into it,
// or says what is true of one broker only.
func StartOne(t testing.TB, env ...string) *Broker {
	t.Helper()
	return StartSetup(t, Setup{Brokers: 1, Env: env}).Broker
}

// StartSetup runs what the setup says until the test ends.
func StartSetup(t testing.TB, setup Setup) *Stage {
	t.Helper()
	stage := &Stage{}
	db := stage.database(t, setup)
	if setup.Proxy {
		stage.Proxy = NewProxy(t, db)
		db.proxied(stage.Proxy)
	}
	setup.Env = slices.Concat([]string{"DB_POOL_SIZE=12"}, setup.Env)
	b, err := current.newBrokers(t.Context(), db, setup)
	require.NoError(t, err)
	b.cleanup(t)
	stage.Broker = b
	for i := range setup.Sweepers {
		stage.Sweepers = append(stage.Sweepers, StartSweeper(t, db, slices.Concat(b.joining[i], setup.SweeperEnv)...))
	}
	stage.awaitPool(t, setup)
	return stage
}

// awaitPool waits until every sweeper knows everybody else.
func (s *Stage) awaitPool(t testing.TB, setup Setup) {
	t.Helper()
	if setup.Apart {
		return
	}
	for _, sweeper := range s.Sweepers {
		sweeper.AwaitPeers(t, len(s.Each), len(s.Sweepers)-1)
	}
}

// database makes the database of a stage, on the suite's server or its own.
func (s *Stage) database(t testing.TB, setup Setup) *Database {
	t.Helper()
	if setup.Server {
		var err error
		s.Server, err = current.startServer(t.Context(), "postgres-"+strconv.FormatInt(time.Now().UnixNano(), 36), setup.MaxConnections)
		require.NoError(t, err)
		db, err := openDatabase(t.Context(), s.Server.URL("postgres"), "postgres")
		require.NoError(t, err)
		t.Cleanup(db.Pool.Close)
		if setup.Owner || current.owner() {
			db.asOwner()
			return db
		}
		require.NoError(t, createRuntimeRole(t.Context(), db.Pool))
		require.NoError(t, current.migrate(t.Context(), db))
		return db
	}
	return newDatabase(t, func(ctx context.Context, pg *postgres) (*Database, error) {
		return current.createReady(ctx, pg, setup.Owner)
	})
}

// NewDatabase makes a database of the test's own on the suite's server, without the
// schema.
func NewDatabase(t testing.TB) *Database {
	t.Helper()
	return newDatabase(t, func(ctx context.Context, pg *postgres) (*Database, error) {
		db, err := pg.create(ctx, "")
		if err == nil && current.owner() {
			db.asOwner()
		}
		return db, err
	})
}

func newDatabase(t testing.TB, create func(context.Context, *postgres) (*Database, error)) *Database {
	t.Helper()
	pg, err := current.postgres()
	require.NoError(t, err)
	db, err := create(t.Context(), pg)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := pg.drop(context.Background(), db); err != nil {
			t.Error(err)
		}
	})
	return db
}

// Migrate applies the schema to a database.
func Migrate(t testing.TB, db *Database) {
	t.Helper()
	require.NoError(t, current.migrate(t.Context(), db))
}

// Sibling runs another broker on the same database, which nobody tells anything.
func (b *Broker) Sibling(t testing.TB, env ...string) *Broker {
	t.Helper()
	peer, err := current.newBrokers(t.Context(), b.DB, Setup{Brokers: 1, Env: slices.Concat([]string{"DB_POOL_SIZE=12"}, env)})
	require.NoError(t, err)
	peer.cleanup(t)
	return peer
}

// cleanup stops the brokers when the test ends.
func (b *Broker) cleanup(t testing.TB) {
	b.watch(t)
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// watch prints what the brokers wrote during the test if the test fails.
func (b *Broker) watch(t testing.TB) {
	for _, one := range b.Each {
		one.log.watch(t, one.URL)
	}
}

// newBrokers starts the brokers of a setup. The first one is up before the
// others start: it applies the schema for all.
func (s *suite) newBrokers(ctx context.Context, db *Database, setup Setup) (*Broker, error) {
	run, err := s.run()
	if err != nil {
		return nil, err
	}
	n := cmp.Or(setup.Brokers, run.brokers)
	setup.Env = slices.Concat(run.brokerEnv, setup.Env)
	all := &Broker{DB: db}
	mesh := make([][]string, n+setup.Sweepers)
	if !setup.Apart {
		if mesh, err = meshEnvironment(ctx, len(mesh)); err != nil {
			return nil, err
		}
	}
	var urls []string
	for i := range n {
		b, err := s.newBroker(ctx, db, setup.Ops, slices.Concat(mesh[i], setup.Env))
		if b != nil {
			all.Each = append(all.Each, b)
		}
		if err != nil {
			return nil, errors.Join(err, all.stop())
		}
		urls = append(urls, b.URL)
	}
	all.joining = mesh[n:]
	if n == 1 {
		all.Each[0].joining = all.joining
		return all.Each[0], nil
	}
	all.Client = s.brokerClient(urls...)
	return all, nil
}

// meshEnvironment joins n processes; one has nobody to talk to.
func meshEnvironment(ctx context.Context, n int) ([][]string, error) {
	out := make([][]string, n)
	if n == 1 {
		return out, nil
	}
	ports := make([]string, n)
	peers := make([]string, n)
	for i := range n {
		port, err := reservePort(ctx)
		if err != nil {
			return nil, err
		}
		ports[i] = strconv.Itoa(port)
		peers[i] = "127.0.0.1:" + ports[i]
	}
	for i := range out {
		out[i] = []string{
			"QUEEN_MESH_PORT=" + ports[i], "QUEEN_MESH_PEERS=" + strings.Join(peers, ","),
			"QUEEN_MESH_BIND_ADDR=127.0.0.1", "QUEEN_MESH_ADVERTISE_HOST=127.0.0.1",
		}
	}
	return out, nil
}

func (s *suite) newBroker(ctx context.Context, db *Database, ops bool, env []string) (*Broker, error) {
	path, err := s.broker()
	if err != nil {
		return nil, err
	}
	port, err := reservePort(ctx)
	if err != nil {
		return nil, err
	}
	url := "http://127.0.0.1:" + strconv.Itoa(port)
	address := ""
	if ops {
		if address, err = reserveAddress(ctx); err != nil {
			return nil, err
		}
	}
	env = slices.Concat(cleanEnvironment(), db.brokerEnv(), []string{
		"PORT=" + strconv.Itoa(port), "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_OPS_ADDR=" + address,
		// Tests are one tenant, and come all at once.
		"QUEEN_KV_READ_RATE=1000000", "QUEEN_KV_READ_BURST=1000000", "QUEEN_KV_WRITE_RATE=1000000", "QUEEN_KV_WRITE_BURST=1000000", "QUEEN_KV_CELL_RATE=0",
	}, env)
	b := &Broker{DB: db, ops: "http://" + address, Client: s.brokerClient(url), service: newService("broker", path, url+"/health", env)}
	b.Each = []*Broker{b}
	return b, b.boot(ctx)
}

// brokerClient is a client of brokers, whose answers must be what is described.
func (s *suite) brokerClient(urls ...string) *Client {
	c := NewClient(urls...)
	c.verify = s.verify
	return c
}

// Ready tells whether the one broker, of a Setup with Ops, says that requests may be sent
// to it, and why not. One that does not listen is not ready.
func (b *Broker) Ready(ctx context.Context) (bool, string) { return ready(ctx, NewClient(b.ops)) }

// Restart starts the one broker again on the same port.
func (b *Broker) Restart(t testing.TB) {
	t.Helper()
	require.NoError(t, b.TryRestart(t.Context()))
}

// TryRestart is Restart for a goroutine beside the test's own.
func (b *Broker) TryRestart(ctx context.Context) error {
	b.CloseIdle()
	return b.boot(ctx)
}

// stop ends every broker and reports what went wrong in any of them.
func (b *Broker) stop() error {
	if b.Client != nil {
		b.CloseIdle()
	}
	var problems []error
	for _, one := range b.Each {
		problems = append(problems, one.service.stop())
		one.CloseIdle()
	}
	return errors.Join(problems...)
}

// cleanEnvironment is the caller's environment without anything that would
// configure a service: the suite decides that alone.
func cleanEnvironment() []string {
	prefixes := []string{"PG", "QUEEN_", "POP_", "DB_", "DEFAULT_", "JWT_", "LOG_", "OTEL_", "PORT=", "FILE_BUFFER_DIR=",
		"RETENTION_", "PARTITION_", "METRICS_", "STATS_", "RETAINED_"}
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(kv, p) })
	})
}
