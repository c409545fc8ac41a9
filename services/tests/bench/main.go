// Command bench loads a broker and compares it with what the same PostgreSQL
// can do without one. `make bench` calls it.
//
// It starts a private, durable PostgreSQL and the broker, then runs blocks of
// three kinds in turn on that one server: the broker, and two floors at the
// same concurrency that write the same compressed bytes:
//
//	A  one INSERT of the blob per transaction
//	B  allocator UPDATE, segment INSERT and sidecar INSERT in one round trip
//
// It ends with the ratios broker/A and broker/B. Everything is bounded in time
// and runs on loopback only.
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
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, errHelp) {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	opts, err := parseOptions(args)
	if err != nil {
		return err
	}
	srv, err := startServers(ctx)
	if err != nil {
		return err
	}
	defer srv.stop()

	load, err := newWorkload(opts)
	if err != nil {
		return err
	}
	report, err := measure(ctx, opts, srv, load)
	if err != nil {
		return err
	}
	report.print(os.Stdout)
	if opts.jsonPath == "" {
		return nil
	}
	return report.writeJSON(opts.jsonPath)
}
