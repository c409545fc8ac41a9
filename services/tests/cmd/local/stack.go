package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/process"
)

// stack is everything that `make run` starts, stopped in reverse order.
type stack struct {
	cfg      config
	console  *console
	url      string
	pg       *pglocal.Server
	children map[string]*child
	unlock   func()
}

func newStack(cfg config, c *console) *stack {
	return &stack{
		cfg: cfg, console: c, unlock: func() {}, children: make(map[string]*child),
		url: "http://127.0.0.1:" + strconv.Itoa(cfg.httpPort),
	}
}

// start brings the stack up and proves it, service by service.
func (s *stack) start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.prepare, s.startPostgres, s.build, s.startServices, s.prove} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	s.console.print(welcome(s.url, s.cfg))
	return nil
}

// prove has a first message go through, one that nobody wants go away, and a timer
// and a key have their time.
func (s *stack) prove(ctx context.Context) error {
	for _, proof := range []struct {
		name, service string
		prove         func(ctx context.Context, base string, c *console) error
	}{
		{"first message", broker, proveStack},
		{"retention", maintainer, proveRetention},
		{"timer", sweeper, proveTimer},
		{"key", sweeper, proveKey},
	} {
		if err := proof.prove(ctx, s.url, s.console); err != nil {
			return s.children[proof.service].explain(fmt.Errorf("%s: %w", proof.name, err))
		}
	}
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
	if s.cfg.given != "" {
		s.console.step("using the PostgreSQL that %s names", s.cfg.given)
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
func services() []string { return []string{broker, maintainer, sweeper} }

const (
	broker     = "broker"
	maintainer = "maintainer"
	sweeper    = "sweeper"
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

// startServices starts them at once: the others wait for the schema that the broker
// applies.
func (s *stack) startServices(ctx context.Context) (err error) {
	s.console.step("starting the services")
	for _, name := range services() {
		if s.children[name], err = s.startChild(name, s.env(name)); err != nil {
			return err
		}
	}
	for _, name := range services() {
		if err := s.children[name].waitReady(ctx, s.readyURL(name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *stack) readyURL(service string) string {
	switch service {
	case maintainer:
		return "http://" + loopback(s.cfg.maintainerOpsPort) + "/ready"
	case sweeper:
		return "http://" + loopback(s.cfg.sweeperOpsPort) + "/ready"
	}
	return s.url + "/health"
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (s *stack) env(service string) []string {
	env := s.serviceEnv()
	switch service {
	case maintainer:
		return append(env, "QUEEN_OPS_ADDR="+loopback(s.cfg.maintainerOpsPort))
	case sweeper:
		return append(env, s.meshEnv(s.cfg.sweeperMeshPort, s.cfg.brokerMeshPort, s.cfg.sweeperOpsPort)...)
	}
	env = append(env, "PORT="+strconv.Itoa(s.cfg.httpPort))
	if os.Getenv("QUEEN_BIND_ADDR") == "" {
		env = append(env, "QUEEN_BIND_ADDR=127.0.0.1")
	}
	return append(env, s.meshEnv(s.cfg.brokerMeshPort, s.cfg.sweeperMeshPort, s.cfg.opsPort)...)
}

// meshEnv joins a service to the other one that has to do with timers.
func (s *stack) meshEnv(own, other, opsPort int) []string {
	return []string{
		"QUEEN_OPS_ADDR=" + loopback(opsPort), "QUEEN_MESH_PEERS=" + loopback(other), "QUEEN_MESH_PORT=" + strconv.Itoa(own),
		"QUEEN_MESH_BIND_ADDR=127.0.0.1", "QUEEN_MESH_ADVERTISE_HOST=127.0.0.1",
	}
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
	for _, name := range services() {
		s.children[name].log.follow()
	}
	select {
	case <-ctx.Done():
		s.console.step("stopping")
		return nil
	case <-s.children[broker].process.Done():
		return s.children[broker].ended()
	case <-s.children[maintainer].process.Done():
		return s.children[maintainer].ended()
	case <-s.children[sweeper].process.Done():
		return s.children[sweeper].ended()
	}
}

// stop ends what start started, in reverse order.
func (s *stack) stop() {
	for _, name := range slices.Backward(services()) {
		s.children[name].stop()
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
