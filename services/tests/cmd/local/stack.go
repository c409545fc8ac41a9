package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/process"
)

const readyTimeout = 90 * time.Second

// stack is everything that `make run` starts, stopped in reverse order.
type stack struct {
	cfg     config
	console *console
	url     string
	pg      *pglocal.Server
	broker  *process.Process
	log     *processLog // of the broker
	unlock  func()
}

func newStack(cfg config, c *console) *stack {
	return &stack{
		cfg: cfg, console: c, unlock: func() {},
		url: "http://127.0.0.1:" + strconv.Itoa(cfg.httpPort),
	}
}

// start brings the stack up and proves it with a first message.
func (s *stack) start(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.startPostgres(ctx); err != nil {
		return err
	}
	if err := s.startBroker(ctx); err != nil {
		return err
	}
	if err := proveStack(ctx, s.url, s.console); err != nil {
		return fmt.Errorf("first message: %w\n%s", err, s.log.tail(2000))
	}
	s.console.print(welcome(s.url, s.cfg))
	return nil
}

// prepare claims the private folder and the ports before anything is started.
func (s *stack) prepare(ctx context.Context) error {
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("the go command is not on the PATH: install Go 1.26 or newer")
	}
	if err := os.MkdirAll(s.cfg.dir, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", s.cfg.dir, err)
	}
	unlock, err := lockFolder(filepath.Join(s.cfg.dir, "lock"))
	if err != nil {
		return err
	}
	s.unlock = unlock
	if err := checkPort(ctx, s.cfg.httpPort, "PORT"); err != nil {
		return err
	}
	if err := checkPort(ctx, s.cfg.opsPort, "OPS_PORT"); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(s.cfg.dir, "log"), 0o755)
}

func (s *stack) startPostgres(ctx context.Context) error {
	if s.cfg.givenHost != "" {
		s.console.step("using the PostgreSQL at %s (PG_HOST)", s.cfg.givenHost)
		return nil
	}
	dir := filepath.Join(s.cfg.dir, "postgres")
	if s.cfg.reset {
		s.console.step("starting empty: removing the old data")
		if err := pglocal.Remove(ctx, dir); err != nil {
			return fmt.Errorf("remove the old data: %w", err)
		}
	}
	began := time.Now()
	s.console.step("starting PostgreSQL")
	pg, err := pglocal.Start(ctx, pglocal.Options{Dir: dir, Logf: s.console.step})
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.pg = pg
	s.console.step("PostgreSQL is up on port %d after %s", pg.Port(), time.Since(began).Round(10*time.Millisecond))
	return nil
}

func (s *stack) startBroker(ctx context.Context) error {
	began := time.Now()
	s.console.step("building the broker (the first time takes a minute or two)")
	bin := filepath.Join(s.cfg.dir, "bin", "queen-broker")
	if err := process.Build(ctx, s.cfg.root, "./services/broker", bin); err != nil {
		return err
	}
	var err error
	if s.log, err = s.console.newProcessLog("broker", filepath.Join(s.cfg.dir, "log", "broker.log")); err != nil {
		return err
	}
	s.console.step("starting the broker (built in %s)", time.Since(began).Round(100*time.Millisecond))
	if s.broker, err = process.Start("broker", bin, s.brokerEnv(), s.log); err != nil {
		return err
	}
	ready, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("no answer within %s", readyTimeout))
	defer cancel()
	if err := s.broker.WaitHealthy(ready, s.url+"/health"); err != nil {
		return fmt.Errorf("%w\n%s", err, s.log.tail(2000))
	}
	return nil
}

// brokerEnv is the caller's environment, so that any setting can be tried,
// with the addresses of this stack on top.
func (s *stack) brokerEnv() []string {
	env := append(os.Environ(),
		"PORT="+strconv.Itoa(s.cfg.httpPort),
		"QUEEN_OPS_ADDR=127.0.0.1:"+strconv.Itoa(s.cfg.opsPort),
	)
	if os.Getenv("QUEEN_BIND_ADDR") == "" {
		env = append(env, "QUEEN_BIND_ADDR=127.0.0.1")
	}
	if s.pg != nil {
		env = append(env,
			"PG_HOST="+s.pg.Host(), "PG_PORT="+strconv.Itoa(s.pg.Port()),
			"PG_USER="+s.pg.User(), "PG_PASSWORD=", "PG_DATABASE=postgres", "PG_USE_SSL=false")
	}
	return env
}

// follow shows the logs until the person interrupts or a service ends.
func (s *stack) follow(ctx context.Context) error {
	s.log.follow()
	select {
	case <-ctx.Done():
		s.console.step("stopping")
		return nil
	case <-s.broker.Done():
		return fmt.Errorf("the broker ended by itself: %w\n%s", s.broker.Err(), s.log.tail(2000))
	}
}

// stop ends what start started, in reverse order.
func (s *stack) stop() {
	if s.broker != nil {
		_ = s.broker.Stop()
		s.log.close()
	}
	if s.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), process.StopGrace)
		defer cancel()
		if err := s.pg.Stop(ctx); err != nil {
			s.console.step("stop PostgreSQL: %v", err)
		}
	}
	s.unlock()
}
