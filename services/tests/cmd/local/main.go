// Command local runs the whole of Queen on this machine: it finds or provides
// PostgreSQL, builds and starts the services, proves the stack with a first
// message, and follows the logs until it is interrupted. `make run` calls it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	err := run(ctx)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
	default:
		fmt.Fprintln(os.Stderr, "\nqueen: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg, err := loadConfig(os.Getenv)
	if err != nil {
		return err
	}
	s := newStack(cfg, newConsole(os.Stdout))
	defer s.stop()
	if err := s.start(ctx); err != nil {
		return err
	}
	return s.follow(ctx)
}
