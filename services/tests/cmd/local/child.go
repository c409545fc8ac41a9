package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/queenmq/queen/services/tests/process"
)

const readyTimeout = 90 * time.Second

// child is one service of the stack.
type child struct {
	name    string
	process *process.Process
	log     *processLog
}

// startChild runs a service that has been built.
func (s *stack) startChild(name string, env []string) (*child, error) {
	log, err := s.console.newProcessLog(name, filepath.Join(s.cfg.dir, "log", name+".log"))
	if err != nil {
		return nil, err
	}
	p, err := process.Start(name, s.binary(name), env, log)
	if err != nil {
		log.close()
		return nil, err
	}
	return &child{name: name, process: p, log: log}, nil
}

// waitReady waits until a URL of the service answers 200.
func (c *child) waitReady(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("no answer within %s", readyTimeout))
	defer cancel()
	return c.explain(c.process.WaitHealthy(ctx, url))
}

// explain adds the end of the log to an error.
func (c *child) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\n%s", err, c.log.tail(2000))
}

// ended says that the service ended though nobody asked it to.
func (c *child) ended() error {
	return c.explain(fmt.Errorf("the %s ended by itself: %w", c.name, c.process.Err()))
}

// stop ends the service; one that was never started has ended.
func (c *child) stop() {
	if c != nil {
		_ = c.process.Stop()
		c.log.close()
	}
}
