package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/config"
)

const (
	bootPauseMin = 100 * time.Millisecond
	bootPauseMax = 2 * time.Second
)

// waitForDatabase waits until PostgreSQL answers, for as long as the operator allows.
func waitForDatabase(ctx context.Context, db *pgdb.DB, cfg *config.Config, log *slog.Logger) error {
	err := persist(ctx, cfg.Server.BootDBWait, log, "PostgreSQL", db.Ping, func(error) bool { return true })
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("PostgreSQL at %s:%d did not answer within %s (PG_HOST, PG_PORT; QUEEN_BOOT_DB_WAIT_MS is how long to wait): %w",
		cfg.Postgres.Host, cfg.Postgres.Port, cfg.Server.BootDBWait, err)
}

func applySchema(ctx context.Context, db *pgdb.DB, log *slog.Logger) error {
	began := time.Now()
	res, err := schema.Apply(ctx, db, schema.Options{Logger: log})
	switch {
	case err != nil:
		return fmt.Errorf("apply schema: %w", err)
	case res.Newer:
		log.WarnContext(ctx, "the database has a newer schema, which admits this version; nothing was applied")
	default:
		log.InfoContext(ctx, "schema is up to date", slog.Int("applied", len(res.Applied)),
			slog.Duration(logging.KeyElapsed, time.Since(began)))
	}
	return nil
}

// installSchema is applySchema that begins again when PostgreSQL goes away in the
// middle: what it has done stays done. The time bounds when it begins, not how
// long it takes, since a change to a large database may take long.
func installSchema(ctx context.Context, db *pgdb.DB, wait time.Duration, log *slog.Logger) error {
	apply := func(context.Context) error { return applySchema(ctx, db, log) }
	return persist(ctx, wait, log, "schema", apply, func(err error) bool {
		refused := errors.Is(err, schema.ErrTooNew) || errors.Is(err, schema.ErrServerTooOld) || errors.Is(err, schema.ErrUnknownFiles)
		return !refused && store.Classify(err) == store.Transient
	})
}

// awaitSchema is for brokers that leave the schema to somebody else: it waits
// until that has happened.
func awaitSchema(ctx context.Context, db *pgdb.DB, wait time.Duration, log *slog.Logger) error {
	check := func(ctx context.Context) error { return schema.Check(ctx, db) }
	err := persist(ctx, wait, log, "schema", check, func(err error) bool {
		return !errors.Is(err, schema.ErrTooNew) && !errors.Is(err, schema.ErrServerTooOld)
	})
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("check schema (QUEEN_APPLY_SCHEMA is off; `broker migrate` applies it): %w", err)
}

// persist tries until try succeeds, fails for good, or would be tried again
// after wait. It tries at least once.
func persist(ctx context.Context, wait time.Duration, log *slog.Logger, what string,
	try func(context.Context) error, mayHeal func(error) bool,
) error {
	deadline := time.Now().Add(wait)
	for attempt := 0; ; attempt++ {
		err := tryBefore(ctx, deadline, try)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause := lifecycle.Backoff(attempt, bootPauseMin, bootPauseMax)
		if !mayHeal(err) || time.Now().Add(pause).After(deadline) {
			return err
		}
		log.WarnContext(ctx, "waiting", slog.String(logging.KeyComponent, what), slog.Int(logging.KeyAttempt, attempt+1), slog.Duration(logging.KeyDelay, pause), logging.Err(err))
		if !lifecycle.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// leastTry is what one attempt gets even when hardly any time is left.
const leastTry = time.Second

func tryBefore(ctx context.Context, deadline time.Time, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, max(time.Until(deadline), leastTry))
	defer cancel()
	return try(ctx)
}
