// Command bench holds the services to their targets: `make bench` the broker,
// `make bench-retention` the maintainer, `make bench-timers` timers and the sweeper,
// `make bench-kv` key/value state, `make bench-admin` what operators see.
//
// It starts a private, durable PostgreSQL and runs one row of the table after
// another, each with services and a database of its own, and ends with one table:
// the target beside each measured figure, and OK or MISS.
//
// A comparison is a number of rounds in which the contenders take turns on the
// same server; what is reported is the median of the rounds' ratios and their
// spread. Servers and driver share the processors of the machine, so the driver
// is cheap: request bodies are made before the clock starts, connections are
// kept, and answers are searched, not parsed. Yet every answer is checked: only
// correct ones count, and a failure makes its row a MISS.
//
// The files: row.go is what a row is, rows.go lists them, row_*.go are their
// programs; flow.go pushes and consumes, floor.go writes to PostgreSQL alone,
// load.go drives either, measure.go measures them in blocks; hopper.go measures single
// deliveries, timers.go makes timers, kv.go and pgbench.go work on keys; asks.go asks
// management routes; bulk.go and stale.go fill a database; stack.go runs the servers, sweeper.go reads the sweepers'
// metrics, maintainer.go runs the maintainer, and watch.go sees its locks; report.go
// shows the figures.
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
	if opts.list {
		printRows(os.Stdout, rows(opts))
		return nil
	}
	chosen, err := choose(rows(opts), opts.only)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, opts)
	if err != nil {
		return err
	}
	defer b.lab.stop()
	rep := newReport(b)
	for i, r := range chosen {
		progress("row %d of %d: %s, %s", i+1, len(chosen), r.name, r.what)
		rep.add(b.runRow(ctx, r))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(chosen) > 1 {
			rep.printLast(os.Stderr)
		}
	}
	rep.print(os.Stdout)
	if opts.jsonPath == "" {
		return nil
	}
	return rep.writeJSON(opts.jsonPath)
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
