package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/process"
)

// servers are the private PostgreSQL and the broker under test.
type servers struct {
	dir    string
	url    string
	pg     *pglocal.Server
	broker *process.Process
	log    *os.File
	db     *pgxpool.Pool // the driver's own connections: floors and counters
}

// startServers brings both up with durable settings: nothing that an operator
// would not run is switched off.
func startServers(ctx context.Context) (*servers, error) {
	dir, err := os.MkdirTemp("", "queen-bench-")
	if err != nil {
		return nil, err
	}
	s := &servers{dir: dir}
	if err := s.start(ctx); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *servers) start(ctx context.Context) (err error) {
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	progress("starting PostgreSQL")
	if s.pg, err = pglocal.Start(ctx, pglocal.Options{Dir: filepath.Join(s.dir, "postgres")}); err != nil {
		return err
	}
	progress("building the broker")
	bin := filepath.Join(s.dir, "queen-broker")
	if err := process.Build(ctx, ".", "./services/broker", bin); err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "broker.log")); err != nil {
		return err
	}
	env := append(os.Environ(),
		"PORT="+strconv.Itoa(port), "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_OPS_ADDR="+os.Getenv("QUEEN_OPS_ADDR"), "QUEEN_PPROF="+os.Getenv("QUEEN_PPROF"),
		"PG_HOST="+s.pg.Host(), "PG_PORT="+strconv.Itoa(s.pg.Port()), "PG_USER="+s.pg.User(),
		"PG_PASSWORD=", "PG_DATABASE=postgres", "PG_USE_SSL=false", "LOG_LEVEL=warn")
	if s.broker, err = process.Start("broker", bin, env, s.log); err != nil {
		return err
	}
	s.url = "http://127.0.0.1:" + strconv.Itoa(port)
	ready, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.broker.WaitHealthy(ready, s.url+"/health"); err != nil {
		text, _ := os.ReadFile(s.log.Name())
		return fmt.Errorf("%w\n%s", err, text)
	}
	s.db, err = pgxpool.New(ctx, s.pg.URL("postgres")+"&pool_max_conns=64")
	return err
}

func (s *servers) stop() {
	if s.db != nil {
		s.db.Close()
	}
	if s.broker != nil {
		_ = s.broker.Stop()
	}
	if s.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), process.StopGrace)
		defer cancel()
		_ = s.pg.Stop(ctx)
	}
	if s.log != nil {
		_ = s.log.Close()
	}
	_ = os.RemoveAll(s.dir)
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

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
