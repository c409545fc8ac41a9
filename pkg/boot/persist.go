package boot

import (
	"context"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
)

const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 2 * time.Second

	// leastTry is what one attempt gets even when hardly any time is left.
	leastTry = time.Second

	// quiet is how often the log repeats what is waited for.
	quiet = 10 * time.Second

	componentServer = "PostgreSQL"
	componentSchema = "schema"
)

// persist tries until try succeeds, fails for good, or would be tried again
// after wait. It tries at least once.
func (d *Database) persist(ctx context.Context, wait time.Duration, what string,
	try func(context.Context) error, mayHeal func(error) bool,
) error {
	deadline := time.Now().Add(wait)
	var logged time.Time
	for attempt := 0; ; attempt++ {
		err := tryBefore(ctx, deadline, try)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := lifecycle.Backoff(attempt, pauseMin, pauseMax)
		if !mayHeal(err) || time.Now().Add(pause).After(deadline) {
			return err
		}
		if time.Since(logged) >= quiet {
			logged = time.Now()
			d.log.WarnContext(ctx, "waiting", slog.String(logging.KeyComponent, what), slog.Int(logging.KeyAttempt, attempt+1), slog.Duration(logging.KeyDelay, pause), logging.Err(err))
		}
		if !lifecycle.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func tryBefore(ctx context.Context, deadline time.Time, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(time.Until(deadline), leastTry))
	defer cancel()
	return try(ctx)
}
