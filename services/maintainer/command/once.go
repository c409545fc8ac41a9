package command

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/queenmq/queen/services/maintainer/internal/app"
	"github.com/queenmq/queen/services/maintainer/internal/report"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
)

var errBusy = errors.New("another maintainer is in the middle of a cycle; nothing was done")

// onceOptions are the arguments of run-once.
type onceOptions struct{ dry, json bool }

// once declares the flags of run-once.
func once(flags *flag.FlagSet) func(context.Context, *app.App, io.Writer) error {
	var o onceOptions
	flags.BoolVar(&o.dry, "dry-run", false, "")
	flags.BoolVar(&o.json, "json", false, "")
	return func(ctx context.Context, a *app.App, stdout io.Writer) error { return o.cycle(ctx, a, stdout) }
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
