package command

import (
	"context"
	"errors"
	"flag"
	"io"

	"github.com/queenmq/queen/services/sweeper/internal/app"
	"github.com/queenmq/queen/services/sweeper/internal/report"
)

// once declares the flags of run-once. What was done is printed also beside a failure.
func once(flags *flag.FlagSet) func(context.Context, *app.App, io.Writer) error {
	asJSON := flags.Bool("json", false, "")
	return func(ctx context.Context, a *app.App, stdout io.Writer) error {
		r, err := a.RunOnce(ctx)
		if r.Began.IsZero() { // it did not get that far
			return err
		}
		write := report.Table
		if *asJSON {
			write = report.JSON
		}
		return errors.Join(err, write(stdout, r))
	}
}
