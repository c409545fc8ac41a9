package boot

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry"
)

// Database is the pool of one service from its first attempt to connect to its end.
type Database struct {
	*pgdb.DB
	wait time.Duration
	log  *slog.Logger
}

// Open prepares the pool; Connect is the first to need the server. wait is how
// long each step of the boot goes on trying (QUEEN_BOOT_DB_WAIT_MS).
func Open(ctx context.Context, cfg pgdb.Config, wait time.Duration, tel *telemetry.Telemetry, log *slog.Logger) (*Database, error) {
	tracers := tel.Tracers
	if !tel.Tracing {
		tracers = nil // statements pay nothing for spans nobody collects
	}
	db, err := pgdb.Open(ctx, cfg, pgdb.WithTelemetry(tracers, tel.Meters))
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to PostgreSQL: %w", err)
	}
	return &Database{DB: db, wait: wait, log: log}, nil
}

// Connect waits until PostgreSQL answers, for as long as the operator allows.
func (d *Database) Connect(ctx context.Context) error {
	err := d.persist(ctx, d.wait, componentServer, d.Ping, func(error) bool { return true })
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("PostgreSQL at %s did not answer within %s (PG_URL, or PG_HOST and PG_PORT; QUEEN_BOOT_DB_WAIT_MS is how long to wait): %w",
		d.Config().Address(), d.wait, err)
}

// Retry makes a call of the boot again while only the connection is to blame.
func (d *Database) Retry(ctx context.Context, call func(context.Context) error) error {
	return d.persist(ctx, d.wait, componentServer, call, func(err error) bool { return store.Classify(err) == store.Transient })
}

// Disconnect closes the pool. It waits for statements that are still running,
// but not beyond the deadline.
func (d *Database) Disconnect(ctx context.Context) error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.Close()
	}()
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close the pool: %w", context.Cause(ctx))
	}
}
