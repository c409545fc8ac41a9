package boot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/store"
)

// forever is longer than any process runs.
const forever time.Duration = math.MaxInt64

// InstallSchema brings the database to this build's schema. It begins again when
// PostgreSQL goes away in the middle: what it has done stays done. The time bounds
// when it begins, not how long it takes, since a change to a large database may
// take long.
//
// Then the roles, if any, are granted what the services need.
func (d *Database) InstallSchema(ctx context.Context, roles ...string) error {
	apply := func(context.Context) error {
		if err := d.applySchema(ctx); err != nil {
			return err
		}
		return d.grant(ctx, roles)
	}
	return d.persist(ctx, d.wait, componentSchema, apply, func(err error) bool {
		return !refused(err) && !errors.Is(err, schema.ErrUnknownFiles) && store.Classify(err) == store.Transient
	})
}

func (d *Database) applySchema(ctx context.Context) error {
	began := time.Now()
	res, err := schema.Apply(ctx, d.DB, schema.Options{Logger: d.log})
	switch {
	case err != nil:
		return fmt.Errorf("apply schema: %w", err)
	case res.Newer:
		d.log.WarnContext(ctx, "the database has a newer schema, which admits this version; nothing was applied",
			slog.Int(logging.KeyGeneration, res.Found), slog.Int(logging.KeyOwn, schema.Generation))
	default:
		d.log.InfoContext(ctx, "schema is up to date", slog.Int(logging.KeyApplied, len(res.Applied)),
			slog.Duration(logging.KeyElapsed, time.Since(began)))
	}
	return nil
}

func (d *Database) grant(ctx context.Context, roles []string) error {
	granted, err := schema.Grant(ctx, d.DB, roles...)
	if err != nil {
		return fmt.Errorf("QUEEN_RUNTIME_ROLE: %w", err)
	}
	if len(granted) > 0 {
		d.log.InfoContext(ctx, "the runtime role was granted what it lacked", slog.Int(logging.KeyCount, len(granted)),
			slog.String(logging.KeyStatement, strings.Join(granted, "; ")))
	}
	return nil
}

// RequireSchema is for a service that leaves the schema to somebody else who
// should be at it by now: it gives up after the wait.
func (d *Database) RequireSchema(ctx context.Context) error { return d.checkSchema(ctx, d.wait) }

// AwaitSchema is for a service that never applies the schema and may have been
// started long before those that do: it waits for as long as it takes, and gives
// up only where waiting cannot help.
func (d *Database) AwaitSchema(ctx context.Context) error { return d.checkSchema(ctx, forever) }

func (d *Database) checkSchema(ctx context.Context, wait time.Duration) error {
	return d.persist(ctx, wait, componentSchema, d.Usable, func(err error) bool { return !refused(err) })
}

// Usable returns nil when the database answers and has a schema that this build
// can work with.
func (d *Database) Usable(ctx context.Context) error { return schema.Check(ctx, d.DB) }

// refused tells that this build and this database will never fit.
func refused(err error) bool {
	return errors.Is(err, schema.ErrTooNew) || errors.Is(err, schema.ErrServerTooOld)
}
