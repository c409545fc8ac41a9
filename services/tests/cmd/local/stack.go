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

// stack is everything that `make run` starts, stopped in reverse order.
type stack struct {
	cfg        config
	console    *console
	url        string
	pg         *pglocal.Server
	broker     *child
	maintainer *child
	unlock     func()
}

func newStack(cfg config, c *console) *stack {
	return &stack{
		cfg: cfg, console: c, unlock: func() {},
		url: "http://127.0.0.1:" + strconv.Itoa(cfg.httpPort),
	}
}

// start brings the stack up and proves it: a first message goes through, and one
// that nobody wants goes away.
func (s *stack) start(ctx context.Context) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.startPostgres(ctx); err != nil {
		return err
	}
	if err := s.build(ctx); err != nil {
		return err
	}
	if err := s.startServices(ctx); err != nil {
		return err
	}
	if err := proveStack(ctx, s.url, s.console); err != nil {
		return s.broker.explain(fmt.Errorf("first message: %w", err))
	}
	if err := proveRetention(ctx, s.url, s.console); err != nil {
		return s.maintainer.explain(fmt.Errorf("retention: %w", err))
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
	for variable, port := range s.cfg.ports() {
		if err := checkPort(ctx, port, variable); err != nil {
			return err
		}
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

// services are built and started in this order, which is also that of the log.
func services() []string { return []string{broker, maintainer} }

const (
	broker     = "broker"
	maintainer = "maintainer"
)

func (s *stack) binary(service string) string {
	return filepath.Join(s.cfg.dir, "bin", "queen-"+service)
}

func (s *stack) build(ctx context.Context) error {
	began := time.Now()
	s.console.step("building the services (the first time takes a minute or two)")
	for _, name := range services() {
		if err := process.Build(ctx, s.cfg.root, "./services/"+name, s.binary(name)); err != nil {
			return err
		}
	}
	s.console.step("built in %s", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// startServices starts them at once: the maintainer waits for the schema that the
// broker applies.
func (s *stack) startServices(ctx context.Context) (err error) {
	s.console.step("starting the broker and the maintainer")
	if s.broker, err = s.startChild(broker, s.brokerEnv()); err != nil {
		return err
	}
	if s.maintainer, err = s.startChild(maintainer, s.maintainerEnv()); err != nil {
		return err
	}
	if err := s.broker.waitReady(ctx, s.url+"/health"); err != nil {
		return err
	}
	return s.maintainer.waitReady(ctx, "http://"+loopback(s.cfg.maintainerOpsPort)+"/ready")
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (s *stack) brokerEnv() []string {
	env := append(s.serviceEnv(), "PORT="+strconv.Itoa(s.cfg.httpPort), "QUEEN_OPS_ADDR="+loopback(s.cfg.opsPort))
	if os.Getenv("QUEEN_BIND_ADDR") == "" {
		env = append(env, "QUEEN_BIND_ADDR=127.0.0.1")
	}
	return env
}

func (s *stack) maintainerEnv() []string {
	return append(s.serviceEnv(), "QUEEN_OPS_ADDR="+loopback(s.cfg.maintainerOpsPort))
}

// serviceEnv is the caller's environment, so that any setting can be tried, with
// the database of this stack on top.
func (s *stack) serviceEnv() []string {
	env := os.Environ()
	if s.pg != nil {
		env = append(env,
			"PG_HOST="+s.pg.Host(), "PG_PORT="+strconv.Itoa(s.pg.Port()),
			"PG_USER="+s.pg.User(), "PG_PASSWORD=", "PG_DATABASE=postgres", "PG_USE_SSL=false")
	}
	return env
}

// follow shows the logs until the person interrupts or a service ends.
func (s *stack) follow(ctx context.Context) error {
	s.broker.log.follow()
	s.maintainer.log.follow()
	select {
	case <-ctx.Done():
		s.console.step("stopping")
		return nil
	case <-s.broker.process.Done():
		return s.broker.ended()
	case <-s.maintainer.process.Done():
		return s.maintainer.ended()
	}
}

// stop ends what start started, in reverse order.
func (s *stack) stop() {
	s.maintainer.stop()
	s.broker.stop()
	if s.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), process.StopGrace)
		defer cancel()
		if err := s.pg.Stop(ctx); err != nil {
			s.console.step("stop PostgreSQL: %v", err)
		}
	}
	s.unlock()
}
