package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/queenmq/queen/services/maintainer/internal/app"
	"github.com/queenmq/queen/services/maintainer/internal/report"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

var errBusy = errors.New("another maintainer is in the middle of a cycle; nothing was done")

// onceOptions are the arguments of run-once.
type onceOptions struct{ dry, json bool }

// runOnce makes one retention cycle. Its report goes to stdout, its log to stderr.
func runOnce(args []string, stdout, stderr io.Writer) int {
	var o onceOptions
	flags := flag.NewFlagSet(commandOnce, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.BoolVar(&o.dry, "dry-run", false, "")
	flags.BoolVar(&o.json, "json", false, "")
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unknown arguments %q", flags.Args())
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "maintainer: %s: %s\n\n%s", commandOnce, err, usage)
		return exitUsage
	}
	return exitCode(with(stderr, func(ctx context.Context, a *app.App) error { return o.cycle(ctx, a, stdout) }), stderr)
}

// cycle makes the cycle. What was done is printed also beside a failure.
func (o onceOptions) cycle(ctx context.Context, a *app.App, stdout io.Writer) error {
	r, err := a.RunOnce(ctx, o.dry)
	busy := errors.Is(err, retention.ErrNotLeader)
	if err == nil || busy || len(r.Phases) > 0 {
		if err := o.print(stdout, r, busy); err != nil {
			return err
		}
	}
	if busy {
		return errBusy
	}
	return err
}

// print writes the report. A table of nothing would say less than the error that
// follows.
func (o onceOptions) print(stdout io.Writer, r retention.Report, busy bool) error {
	switch {
	case o.json:
		return report.JSON(stdout, r, !busy, o.dry)
	case busy:
		return nil
	}
	return report.Table(stdout, r, o.dry)
}
