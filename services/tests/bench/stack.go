package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/process"
)

const (
	bootTimeout = time.Minute
	// driverConns is the driver's own pool: the floors at their concurrency.
	driverConns = 72
	maxConns    = 400
	// sharedPool is the pool of each of several brokers on one PostgreSQL.
	sharedPool = 16
	logTail    = 2000
)

// lab is what all rows share: a private PostgreSQL and the built broker.
type lab struct {
	dir    string
	binary string
	pg     *pglocal.Server
	admin  *pgxpool.Pool
	scale  scale
	number int    // of the next database
	server string // what it is, for the report
}

// startLab brings PostgreSQL up with durable settings: nothing that an operator
// would not run is switched off, unless fast asks for it.
func startLab(ctx context.Context, o options) (*lab, error) {
	dir, err := os.MkdirTemp("", "queen-bench-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, scale: o.scale, binary: filepath.Join(dir, "queen-broker")}
	if err := l.start(ctx, o.fast); err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

func (l *lab) start(ctx context.Context, fast bool) (err error) {
	if err := os.Chmod(l.dir, 0o755); err != nil {
		return err
	}
	progress("building the broker")
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	if err := process.Build(ctx, root, "./services/broker", l.binary); err != nil {
		return err
	}
	progress("starting PostgreSQL")
	l.pg, err = pglocal.Start(ctx, pglocal.Options{
		Dir: filepath.Join(l.dir, "postgres"), Fast: fast,
		Settings: map[string]string{"max_connections": strconv.Itoa(maxConns)},
	})
	if err != nil {
		return err
	}
	if l.admin, err = pgxpool.New(ctx, l.pg.URL("postgres")); err != nil {
		return err
	}
	const q = `SELECT format('PostgreSQL %s, fsync %s, synchronous_commit %s', current_setting('server_version_num')::int / 10000,
		current_setting('fsync'), current_setting('synchronous_commit'))`
	return l.admin.QueryRow(ctx, q).Scan(&l.server)
}

// repositoryRoot is the nearest parent folder with a go.work file.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("run inside the repository: no go.work found")
		}
		dir = parent
	}
}

func (l *lab) stop() {
	if l.admin != nil {
		l.admin.Close()
	}
	if l.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), process.StopGrace)
		defer cancel()
		_ = l.pg.Stop(ctx)
		_ = pglocal.Remove(ctx, filepath.Join(l.dir, "postgres"))
	}
	_ = os.RemoveAll(l.dir)
}

// stack is brokers on a database of their own.
type stack struct {
	lab     *lab
	name    string // of the database
	db      *pgxpool.Pool
	brokers []*broker
}

// broker is one broker process.
type broker struct {
	addr string
	env  []string
	log  *os.File
	proc *process.Process
}

// with runs fn on n brokers that share a fresh database, and removes them
// afterwards. An error carries the end of the brokers' logs.
func (l *lab) with(ctx context.Context, n int, fn func(s *stack) error) error {
	l.number++
	s := &stack{lab: l, name: "bench_" + strconv.Itoa(l.number)}
	err := s.start(ctx, n)
	if err == nil {
		err = fn(s)
	}
	if err != nil {
		err = errors.Join(err, s.logs())
	}
	s.stop()
	return err
}

func (s *stack) start(ctx context.Context, n int) error {
	if _, err := s.lab.admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{s.name}.Sanitize()); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	var err error
	if s.db, err = pgxpool.New(ctx, s.lab.pg.URL(s.name)+"&pool_max_conns="+strconv.Itoa(driverConns)); err != nil {
		return err
	}
	mesh, err := meshSettings(ctx, n)
	if err != nil {
		return err
	}
	for i := range n {
		b, err := s.newBroker(ctx, i, mesh[i])
		if err != nil {
			return err
		}
		s.brokers = append(s.brokers, b)
		if err := b.start(ctx, s.lab.binary); err != nil {
			return err
		}
	}
	return nil
}

// meshSettings makes several brokers known to each other on loopback.
func meshSettings(ctx context.Context, n int) ([][]string, error) {
	settings := make([][]string, n)
	if n == 1 {
		return settings, nil
	}
	ports := make([]int, n)
	peers := make([]string, n)
	for i := range n {
		var err error
		if ports[i], err = freePort(ctx); err != nil {
			return nil, err
		}
		peers[i] = "127.0.0.1:" + strconv.Itoa(ports[i])
	}
	for i := range n {
		settings[i] = []string{
			"QUEEN_MESH_PORT=" + strconv.Itoa(ports[i]), "QUEEN_MESH_PEERS=" + strings.Join(peers, ","),
			"QUEEN_SYNC_SECRET=the-secret-of-one-benchmark-run", "DB_POOL_SIZE=" + strconv.Itoa(sharedPool),
		}
	}
	return settings, nil
}

// newBroker inherits the environment, so that a setting can be tried out.
func (s *stack) newBroker(ctx context.Context, i int, more []string) (*broker, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	b := &broker{addr: "127.0.0.1:" + strconv.Itoa(port)}
	if b.log, err = os.Create(filepath.Join(s.lab.dir, fmt.Sprintf("%s-%d.log", s.name, i))); err != nil {
		return nil, err
	}
	ops := ""
	if i == 0 {
		ops = os.Getenv("QUEEN_OPS_ADDR")
	}
	pg := s.lab.pg
	b.env = append(os.Environ(),
		"PORT="+strconv.Itoa(port), "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_OPS_ADDR="+ops,
		"PG_HOST="+pg.Host(), "PG_PORT="+strconv.Itoa(pg.Port()), "PG_USER="+pg.User(),
		"PG_PASSWORD=", "PG_DATABASE="+s.name, "PG_USE_SSL=false", "LOG_LEVEL=warn")
	b.env = append(b.env, more...)
	return b, nil
}

func (b *broker) start(ctx context.Context, binary string) (err error) {
	if b.proc, err = process.Start("broker", binary, b.env, b.log); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	return b.proc.WaitHealthy(ready, "http://"+b.addr+"/health")
}

// restart stops a broker as an operator would and starts it again.
func (b *broker) restart(ctx context.Context, binary string) error {
	if err := b.proc.Stop(); err != nil {
		return fmt.Errorf("stop the broker: %w", err)
	}
	return b.start(ctx, binary)
}

// addrs are the brokers' addresses.
func (s *stack) addrs() []string {
	addrs := make([]string, len(s.brokers))
	for i, b := range s.brokers {
		addrs[i] = b.addr
	}
	return addrs
}

// logs is an error that holds the ends of the brokers' logs, nil when they are empty.
func (s *stack) logs() error {
	var problems []error
	for _, b := range s.brokers {
		text, _ := os.ReadFile(b.log.Name())
		if text = bytes.TrimSpace(text[max(0, len(text)-logTail):]); len(text) > 0 {
			problems = append(problems, fmt.Errorf("%s wrote: %s", b.addr, text))
		}
	}
	return errors.Join(problems...)
}

func (s *stack) stop() {
	for _, b := range s.brokers {
		if b.proc != nil {
			_ = b.proc.Stop()
		}
		_ = b.log.Close()
	}
	if s.db == nil {
		return
	}
	s.db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), process.StopGrace)
	defer cancel()
	// The disk would fill up; a database that stays is removed with the server.
	_, _ = s.lab.admin.Exec(ctx, "DROP DATABASE "+pgx.Identifier{s.name}.Sanitize()+" WITH (FORCE)")
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
