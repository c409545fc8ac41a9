package pgdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a pool of sessions to one database. It is safe for concurrent use.
type DB struct {
	cfg  Config
	conn *pgx.ConnConfig
	pool *pgxpool.Pool
}

// Option adjusts a DB at Open.
type Option func(*pgxpool.Config)

// WithTracer observes every statement (otelpgx).
func WithTracer(t pgx.QueryTracer) Option {
	return func(c *pgxpool.Config) { c.ConnConfig.Tracer = t }
}

// Open builds the pool. It does not need the server to be up: the first use
// connects.
func Open(ctx context.Context, cfg Config, opts ...Option) (*DB, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cc, err := cfg.connConfig()
	if err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("prepare pool settings: %w", err)
	}
	pc.ConnConfig = cc
	pc.MaxConns = int32(cfg.PoolSize)
	pc.AfterConnect = cfg.prepareSession
	for _, o := range opts {
		o(pc)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("build the pool: %w", err)
	}
	return &DB{cfg: cfg, conn: cc, pool: pool}, nil
}

// Close closes every session and waits for those in use.
func (db *DB) Close() { db.pool.Close() }

// Config is what the pool was opened with.
func (db *DB) Config() Config { return db.cfg }

// Session opens a connection of its own, outside the pool, with the settings of
// a pooled one: for session-scoped locks. The caller closes it.
func (db *DB) Session(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, db.conn.Copy())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := db.cfg.prepareSession(ctx, conn); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

// prepareSession sets, in one round trip, what every session needs (design rule
// 17): UTC, so that stored procedures format times as the wire shows them;
// keepalives and a connection check, so that a dead client frees its locks; and
// a server-side deadline a little above ours, for the case that ours cannot act.
func (c Config) prepareSession(ctx context.Context, conn *pgx.Conn) error {
	sql := fmt.Sprintf(`SET TimeZone = 'UTC';
SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
SET client_connection_check_interval = '2s';
SET idle_in_transaction_session_timeout = '10s';
SET statement_timeout = %d;`, (c.StatementDeadline() + 5*time.Second).Milliseconds())
	if c.EmptiedSearchPath {
		sql += "SET search_path = '';"
	}
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return fmt.Errorf("set session parameters: %w", err)
	}
	return nil
}

// Do runs one named piece of work on one connection under the statement
// deadline. When the deadline passes or ctx ends, the server is told to cancel
// and the connection is thrown away. The error is ErrPool, or the cause wrapped
// with name.
func (db *DB) Do(ctx context.Context, name string, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, db.cfg.StatementDeadline(),
		fmt.Errorf("%s: statement deadline of %s: %w", name, db.cfg.StatementDeadline(), context.DeadlineExceeded))
	defer cancel()
	err := db.try(ctx, fn)
	if planInvalidated(err) && ctx.Err() == nil {
		err = db.try(ctx, fn)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (db *DB) try(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return errors.Join(ErrPool, err)
	}
	defer conn.Release()
	err = fn(ctx, conn.Conn())
	switch {
	case planInvalidated(err):
		_ = conn.Conn().DeallocateAll(ctx)
	case suspect(err):
		// Closed here, so that Release destroys it instead of recycling it.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Conn().Close(closing)
	}
	return err
}

// Ping makes a real round trip.
func (db *DB) Ping(ctx context.Context) error {
	return db.Do(ctx, "ping", func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// Stat is a snapshot of the pool.
type Stat struct {
	Size, Idle, InUse, Max int
	Waits                  int64 // acquisitions that had to wait, since the start
}

// Stat reads the pool's state.
func (db *DB) Stat() Stat {
	s := db.pool.Stat()
	return Stat{
		Size: int(s.TotalConns()), Idle: int(s.IdleConns()), InUse: int(s.AcquiredConns()),
		Max: int(s.MaxConns()), Waits: s.EmptyAcquireCount(),
	}
}
