package pgdb

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq/queen/pkg/lifecycle"
)

const (
	pingTimeout    = 5 * time.Second
	closeTimeout   = time.Second
	lifetimeJitter = 5 * time.Minute // so that a pool filled at once does not reconnect at once

	// planAttempts is how often a statement is sent whose functions are replaced
	// under it. One apply replaces many that call each other, each in its own
	// transaction: one statement was seen to meet three of them.
	planAttempts = 8
)

// DB is a pool of sessions to one database. It is safe for concurrent use.
type DB struct {
	cfg     Config
	conn    *pgx.ConnConfig
	pool    *pgxpool.Pool
	waiting atomic.Int64

	resets   resets
	refusals *refusals
}

// Option adjusts a DB at Open.
type Option func(*pgxpool.Config)

// Open builds the pool. It does not need the server to be up: the first use
// connects.
func Open(ctx context.Context, cfg Config, opts ...Option) (*DB, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Resolve()
	cc, err := cfg.connConfig()
	if err != nil {
		return nil, fmt.Errorf("prepare connection settings: %w", err)
	}
	pc, err := pgxpool.ParseConfig("sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("prepare pool settings: %w", err)
	}
	pc.ConnConfig = cc
	pc.MaxConns = int32(cfg.PoolSize)
	pc.MaxConnLifetimeJitter = lifetimeJitter
	pc.PingTimeout = pingTimeout
	refused := &refusals{}
	pc.BeforeConnect, pc.AfterConnect = refused.beforeConnect, refused.afterConnect(cfg.prepareSession)
	for _, o := range opts {
		o(pc)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("build the pool: %w", err)
	}
	return &DB{cfg: cfg, conn: cc, pool: pool, refusals: refused}, nil
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
		closeConn(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// Do runs one named piece of work on one connection under the statement
// deadline. When the deadline passes or ctx ends, the server is told to cancel
// and the connection is closed, never recycled; the error then is
// context.DeadlineExceeded or context.Canceled as well as the server's answer.
// The error is ErrPool when no connection could be had, or the cause, wrapped
// with name.
//
// fn must be one statement or one transaction, and start from nothing: it is
// called again, on another attempt, when a function it uses was replaced under
// it and the server has therefore aborted it.
func (db *DB) Do(ctx context.Context, name string, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return again(ctx, name, func(ctx context.Context) error { return db.try(ctx, fn) })
}

// DoOn is Do on a session of the caller's own. One that ran into the server's
// statement_timeout stays open: whoever holds a lock by it decides what to do. Any
// other end, by the deadline, by ctx, or of the server's, closes it.
func (db *DB) DoOn(ctx context.Context, conn *pgx.Conn, name string, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return again(ctx, name, func(ctx context.Context) error { return db.run(ctx, conn, fn, ownSuspect) })
}

// again makes the attempts of a named piece of work.
func again(ctx context.Context, name string, try func(ctx context.Context) error) error {
	ctx = context.WithValue(ctx, nameKey{}, name)
	var err error
	for range planAttempts {
		err = try(ctx)
		if !planInvalidated(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (db *DB) try(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if db.cfg.ServerEnds {
		return db.run(ctx, conn.Conn(), fn, sessionSuspect)
	}
	return db.run(ctx, conn.Conn(), fn, suspect)
}

// run makes one attempt on a connection, and closes it when it must not be used again.
func (db *DB) run(
	ctx context.Context, conn *pgx.Conn, fn func(ctx context.Context, conn *pgx.Conn) error, suspect func(error) bool,
) error {
	limit, _ := db.cfg.limits()
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("statement deadline of %s: %w", limit, context.DeadlineExceeded))
	defer cancel()
	err := fn(ctx, conn)
	if sqlState(err) == codeReadOnly && db.resets.due(time.Now()) {
		// The primary was demoted: every session of the pool is on it.
		db.pool.Reset()
	}
	switch {
	case ctx.Err() != nil:
		// Also without an error: a cancel request may still be on its way to
		// the session, and would hit whatever it does next.
		closeConn(ctx, conn)
		if err != nil {
			return ended(ctx, err)
		}
	case suspect(err):
		closeConn(ctx, conn)
	case planInvalidated(err) && !conn.IsClosed():
		_ = conn.DeallocateAll(ctx)
	}
	return err
}

func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	limit := db.cfg.acquireTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("no connection within %s: %w", limit, context.DeadlineExceeded))
	defer cancel()
	waiting := db.waiting.Add(1)
	defer db.waiting.Add(-1)
	if most := db.cfg.MaxWaiting; most > 0 && waiting > int64(most) {
		return nil, fmt.Errorf("%w: %d callers are waiting", ErrExhausted, most)
	}
	conn, err := db.take(ctx)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		err = ended(ctx, err)
		if s := db.pool.Stat(); s.AcquiredConns() >= s.MaxConns() {
			return nil, fmt.Errorf("%w: %w", ErrExhausted, err)
		}
	}
	return nil, fmt.Errorf("%w: %w", ErrPool, err)
}

// take gets a connection of the pool, an idle or a new one. A pool that has some and is
// refused more is as large as the server lets it be: then one of those is waited for.
func (db *DB) take(ctx context.Context) (*pgxpool.Conn, error) {
	for {
		conn, err := db.pool.Acquire(ctx)
		if err == nil {
			return conn, nil
		}
		db.refusals.note(err, time.Now())
		s := db.pool.Stat()
		if sqlState(err) != codeTooMany || s.AcquiredConns()+s.IdleConns() == 0 || !lifecycle.Sleep(ctx, sharePause) {
			return nil, err
		}
	}
}

// closeConn says goodbye to the server, within a limit of its own because ctx
// may have ended. A closed connection is destroyed on release, not recycled.
func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// Ping makes a real round trip.
func (db *DB) Ping(ctx context.Context) error {
	return db.Do(ctx, "ping", func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) })
}

// Stat is a snapshot of the pool.
type Stat struct {
	Size, Idle, InUse, Max int
	Waiting                int           // callers that want a connection right now
	Waits                  int64         // acquisitions that found none idle, since the start
	WaitTime               time.Duration // what those waited altogether
}

// Stat reads the pool's state.
func (db *DB) Stat() Stat {
	s := db.pool.Stat()
	return Stat{
		Size: int(s.TotalConns()), Idle: int(s.IdleConns()), InUse: int(s.AcquiredConns()), Max: int(s.MaxConns()),
		Waiting: int(db.waiting.Load()), Waits: s.EmptyAcquireCount(), WaitTime: s.EmptyAcquireWaitTime(),
	}
}
