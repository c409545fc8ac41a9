package store

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pgdb"
)

// maintenanceLock elects the retention leader (session advisory lock of the seeds).
const maintenanceLock = 737001

// The limits of a leader's session. A leader that was stopped, or whose packets
// vanish, is idle to the server as soon as its statement has ended: it loses the
// lock after statementLimit and idleLimit at most.
const (
	leaderIdleLimit      = "10s"
	leaderStatementLimit = 5 * time.Second

	// leaderGrace is how much later than the server's our own limit is.
	leaderGrace = 2 * time.Second
)

// StepLockWait is how long a step waits for the lock of its lane, which is then left for
// a later cycle.
const StepLockWait = time.Second

// errNotHeld says that the lock had been lost, or was never taken.
var errNotHeld = errors.New("the maintenance lock is not held by this session")

// MaintenanceSession is one connection of its own, on which a retention leader
// holds its lock and makes every statement. It is not safe for concurrent use.
type MaintenanceSession struct {
	db   *pgdb.DB
	conn *pgx.Conn
}

// Maintenance opens a MaintenanceSession, which the caller closes.
func (s *Store) Maintenance(ctx context.Context) (*MaintenanceSession, error) {
	conn, err := s.db.Session(ctx)
	if err != nil {
		return nil, err
	}
	return &MaintenanceSession{db: s.db, conn: conn}, nil
}

// Close ends the session, and with it what it still holds.
func (m *MaintenanceSession) Close(ctx context.Context) { _ = m.conn.Close(ctx) }

// Closed tells that the connection is gone, and what it held with it.
func (m *MaintenanceSession) Closed() bool { return m.conn.IsClosed() }

// SetLockWait has steps wait for their lanes so long from now on, in whole
// milliseconds; TryLock makes it StepLockWait again.
func (m *MaintenanceSession) SetLockWait(ctx context.Context, wait time.Duration) error {
	var ignored string
	return m.row(ctx, "limit lock waits", `SELECT set_config('lock_timeout', $1, FALSE)`,
		[]any{strconv.FormatInt(max(1, wait.Milliseconds()), 10)}, &ignored)
}

// OthersAtWork tells whether at this moment another session executes something on
// the database. A role that may not see the sessions of others sees those of its own.
func (m *MaintenanceSession) OthersAtWork(ctx context.Context) (busy bool, err error) {
	err = m.row(ctx, "look for others at work", atWork(`a.pid <> pg_backend_pid()`), nil, &busy)
	return busy, err
}

// TryLock takes the leader's lock if nobody has it, and sets the limits of a
// leader's session: before the lock, in one statement, so that a leader that is
// stopped as soon as it has the lock loses it all the same. The session commits
// asynchronously from then on: a step that a crash loses is done again.
func (m *MaintenanceSession) TryLock(ctx context.Context) (got bool, err error) {
	var ignored string
	const try = `SELECT set_config('idle_session_timeout', $2, FALSE) || set_config('lock_timeout', $3, FALSE)
		|| set_config('statement_timeout', $4, FALSE) || set_config('synchronous_commit', 'off', FALSE), pg_try_advisory_lock($1)`
	args := []any{maintenanceLock, leaderIdleLimit, StepLockWait.String(), leaderStatementLimit.String()}
	if err := m.row(ctx, "take the maintenance lock", try, args, &ignored, &got); err != nil || got {
		return got, err
	}
	return false, m.row(ctx, "unlimit the maintenance session", `SELECT set_config('idle_session_timeout', '0', FALSE)`, nil, &ignored)
}

// Unlock gives the lock back; the session may stay open, idle, until its next turn.
func (m *MaintenanceSession) Unlock(ctx context.Context) error {
	var held bool
	var ignored string
	err := m.row(ctx, "release the maintenance lock",
		`SELECT set_config('idle_session_timeout', '0', FALSE), pg_advisory_unlock($1)`, []any{maintenanceLock}, &ignored, &held)
	if err == nil && !held {
		err = errNotHeld
	}
	return err
}

// do runs one statement within the limit of the session. One that the server ended
// (Locked, TimedOut) leaves the session usable; any other failure may have closed it.
func (m *MaintenanceSession) do(ctx context.Context, name string, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, leaderStatementLimit+leaderGrace)
	defer cancel()
	return m.db.DoOn(ctx, m.conn, name, func(ctx context.Context, _ *pgx.Conn) error { return fn(ctx) })
}

// row runs a statement that answers exactly one row and reads it into dest.
func (m *MaintenanceSession) row(ctx context.Context, name, call string, args []any, dest ...any) error {
	return m.do(ctx, name, func(ctx context.Context) error {
		return m.conn.QueryRow(ctx, call, args...).Scan(dest...)
	})
}
