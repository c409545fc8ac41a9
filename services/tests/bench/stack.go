package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
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

// lab is what all rows share: a private PostgreSQL and the built services.
type lab struct {
	dir    string
	data   string   // where PostgreSQL's folder is
	built  []string // names of the services
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
	l := &lab{dir: dir, data: dir, scale: o.scale, built: services(o.table)}
	if o.fast {
		if l.data, err = pglocal.MakeScratch("queen-bench-data-"); err != nil {
			l.stop()
			return nil, err
		}
	}
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
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	for _, name := range l.built {
		progress("building the %s", name)
		if err := process.Build(ctx, root, "./services/"+name, l.binary(name)); err != nil {
			return err
		}
	}
	progress("starting PostgreSQL")
	l.pg, err = pglocal.Start(ctx, pglocal.Options{
		Dir: filepath.Join(l.data, pglocal.ScratchData), Fast: fast,
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

// binary is where a service is built.
func (l *lab) binary(name string) string { return filepath.Join(l.dir, "queen-"+name) }

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
		_ = pglocal.Remove(ctx, filepath.Join(l.data, pglocal.ScratchData))
	}
	_ = errors.Join(os.RemoveAll(l.data), os.RemoveAll(l.dir))
}

// stack is brokers on a database of their own, with sweepers or a maintainer for
// those rows that want them.
type stack struct {
	lab        *lab
	name       string // of the database
	db         *pgxpool.Pool
	brokers    []*service
	sweepers   []*service
	maintainer *service
}

// crew says what a stack starts.
type crew struct {
	brokers  int
	sweepers int
	apart    bool     // they tell each other nothing
	env      []string // of the brokers
}

// members are all that may give each other hints.
func (c crew) members() int { return c.brokers + c.sweepers }

// service is one process of a stack.
type service struct {
	name string
	addr string // of its health route, and of a broker's API
	env  []string
	log  *os.File
	proc *process.Process
}

// with runs fn on n brokers that share a fresh database, and removes them
// afterwards. An error carries the end of the services' logs.
func (l *lab) with(ctx context.Context, n int, fn func(s *stack) error) error {
	c := crew{brokers: n}
	if n > 1 {
		c.env = []string{"DB_POOL_SIZE=" + strconv.Itoa(sharedPool)}
	}
	return l.staff(ctx, c, fn)
}

// several is staff for n stacks at the same time.
func (l *lab) several(ctx context.Context, n int, c crew, fn func(stacks []*stack) error) error {
	var stacks []*stack
	var next func() error
	next = func() error {
		if len(stacks) == n {
			return fn(stacks)
		}
		return l.staff(ctx, c, func(s *stack) error {
			stacks = append(stacks, s)
			return next()
		})
	}
	return next()
}

// staff is with for services of more than one kind.
func (l *lab) staff(ctx context.Context, c crew, fn func(s *stack) error) error {
	l.number++
	s := &stack{lab: l, name: "bench_" + strconv.Itoa(l.number)}
	err := s.start(ctx, c)
	if err == nil {
		err = fn(s)
	}
	if err != nil {
		err = errors.Join(err, s.logs())
	} else {
		err = s.showComplaints()
	}
	s.stop()
	return err
}

func (s *stack) start(ctx context.Context, c crew) error {
	if _, err := s.lab.admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{s.name}.Sanitize()); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	var err error
	if s.db, err = pgxpool.New(ctx, s.lab.pg.URL(s.name)+"&pool_max_conns="+strconv.Itoa(driverConns)); err != nil {
		return err
	}
	mesh := make([][]string, c.members())
	if c.members() > 1 && !c.apart {
		if mesh, err = meshSettings(ctx, c.members()); err != nil {
			return err
		}
	}
	for i := range c.brokers {
		b, err := s.newBroker(ctx, i, slices.Concat(c.env, mesh[i]))
		if err != nil {
			return err
		}
		s.brokers = append(s.brokers, b)
	}
	for i := range c.sweepers {
		v, err := s.newSweeper(ctx, i, mesh[c.brokers+i])
		if err != nil {
			return err
		}
		s.sweepers = append(s.sweepers, v)
	}
	for _, v := range s.services() {
		if err := v.start(ctx, s.lab); err != nil {
			return err
		}
	}
	return nil
}

// meshSettings makes several services known to each other on loopback.
func meshSettings(ctx context.Context, n int) ([][]string, error) {
	settings := make([][]string, n)
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
			"QUEEN_SYNC_SECRET=the-secret-of-one-benchmark-run", "QUEEN_MESH_BIND_ADDR=127.0.0.1",
		}
	}
	return settings, nil
}

func (s *stack) newBroker(ctx context.Context, i int, more []string) (*service, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	ops := ""
	if i == 0 {
		ops = os.Getenv("QUEEN_OPS_ADDR")
	}
	env := []string{"PORT=" + strconv.Itoa(port), "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_OPS_ADDR=" + ops, "LOG_LEVEL=warn"}
	return s.newService("broker", i, port, append(env, more...))
}

// newService inherits the environment, so that a setting can be tried out.
func (s *stack) newService(name string, i, port int, more []string) (*service, error) {
	v := &service{name: name, addr: "127.0.0.1:" + strconv.Itoa(port)}
	var err error
	if v.log, err = os.Create(filepath.Join(s.lab.dir, fmt.Sprintf("%s-%s-%d.log", s.name, name, i))); err != nil {
		return nil, err
	}
	pg := s.lab.pg
	v.env = append(os.Environ(),
		"PG_HOST="+pg.Host(), "PG_PORT="+strconv.Itoa(pg.Port()), "PG_USER="+pg.User(),
		"PG_PASSWORD=", "PG_DATABASE="+s.name, "PG_USE_SSL=false")
	v.env = append(v.env, more...)
	return v, nil
}

func (v *service) start(ctx context.Context, l *lab) (err error) {
	if v.proc, err = process.Start(v.name, l.binary(v.name), v.env, v.log); err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	return v.proc.WaitHealthy(ready, "http://"+v.addr+"/health")
}

// running says whether a service was started and has not ended.
func (v *service) running() bool {
	if v.proc == nil {
		return false
	}
	select {
	case <-v.proc.Done():
		return false
	default:
		return true
	}
}

// restart stops a service as an operator would and starts it again.
func (v *service) restart(ctx context.Context, l *lab) error {
	if err := v.proc.Stop(); err != nil {
		return fmt.Errorf("stop the %s: %w", v.name, err)
	}
	return v.start(ctx, l)
}

// end stops a service that may never have started, and closes its log.
func (v *service) end() {
	if v.proc != nil {
		_ = v.proc.Stop()
	}
	_ = v.log.Close()
}

// addrs are the brokers' addresses.
func (s *stack) addrs() []string {
	addrs := make([]string, len(s.brokers))
	for i, b := range s.brokers {
		addrs[i] = b.addr
	}
	return addrs
}

// services are all that were started.
func (s *stack) services() []*service {
	all := slices.Concat(s.brokers, s.sweepers)
	if s.maintainer != nil {
		all = append(all, s.maintainer)
	}
	return all
}

// logs is an error that holds the ends of the services' logs, nil when they are empty.
func (s *stack) logs() error {
	var problems []error
	for _, v := range s.services() {
		text, _ := os.ReadFile(v.log.Name())
		if text = bytes.TrimSpace(text[max(0, len(text)-logTail):]); len(text) > 0 {
			problems = append(problems, fmt.Errorf("%s %s wrote: %s", v.name, v.addr, text))
		}
	}
	return errors.Join(problems...)
}

func (s *stack) stop() {
	for _, v := range s.services() {
		v.end()
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

// checkpoint keeps a block from paying for what was written before it.
func (s *stack) checkpoint(ctx context.Context) error {
	_, err := s.db.Exec(ctx, "CHECKPOINT")
	return err
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
