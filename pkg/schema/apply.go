package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/pgdb"
)

const (
	// lockID serialises appliers (session advisory lock of the schema seed).
	lockID = 778120010

	minServerVersion = 150000

	lockSlice         = 2 * time.Second
	lockBudgetDefault = time.Minute
	applierWait       = 2 * time.Minute
	retryPause        = 250 * time.Millisecond
)

// Options adjusts Apply. The zero value is what a boot uses.
type Options struct {
	// LockBudget is how long one statement may be retried while other sessions
	// hold its lock; 0 means a minute.
	LockBudget time.Duration
	// Force applies every file again, whatever the record says.
	Force bool
	// Logger receives progress; nil drops it.
	Logger *slog.Logger
}

// Result says what Apply did.
type Result struct {
	Applied []string // files that were executed, in order
	Newer   bool     // the database is of a newer generation; nothing was applied
}

// Apply brings the database to this build's schema. It is safe to call from
// any number of processes at once and on a database under traffic. The errors
// are ErrServerTooOld, ErrTooNew, a *BlockedError, or the failing file and cause.
func Apply(ctx context.Context, db *pgdb.DB, opts Options) (Result, error) {
	if opts.LockBudget <= 0 {
		opts.LockBudget = lockBudgetDefault
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	files, err := embedded()
	if err != nil {
		return Result{}, err
	}
	conn, err := db.Session(ctx)
	if err != nil {
		return Result{}, err
	}
	// Closing the session also gives up the advisory lock.
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := checkServer(ctx, conn); err != nil {
		return Result{}, err
	}
	a := &applier{conn: conn, db: db, opts: opts}
	return a.run(ctx, files)
}

// checkServer refuses a PostgreSQL that is too old, by name.
func checkServer(ctx context.Context, conn *pgx.Conn) error {
	var number int
	var name string
	const q = `SELECT current_setting('server_version_num')::int, current_setting('server_version')`
	if err := conn.QueryRow(ctx, q).Scan(&number, &name); err != nil {
		return fmt.Errorf("read the server version: %w", err)
	}
	return admitServer(number, name)
}

func admitServer(number int, name string) error {
	if number < minServerVersion {
		return fmt.Errorf("%w: this server is PostgreSQL %s", ErrServerTooOld, name)
	}
	return nil
}

type applier struct {
	conn *pgx.Conn
	db   *pgdb.DB
	opts Options
}

func (a *applier) run(ctx context.Context, files []file) (Result, error) {
	// Without the lock first: an identical boot costs one query.
	if todo, newer, err := a.plan(ctx, files); err != nil || len(todo) == 0 {
		return Result{Newer: newer}, err
	}
	if err := a.lock(ctx); err != nil {
		return Result{}, err
	}
	todo, newer, err := a.plan(ctx, files)
	if err != nil || len(todo) == 0 {
		return Result{Newer: newer}, err
	}
	// DDL may take its time; waiting for a lock may not. Bodies may name
	// functions of later files.
	settings := fmt.Sprintf(`SET statement_timeout = 0; SET lock_timeout = %d;
		SET idle_in_transaction_session_timeout = '60s'; SET check_function_bodies = off;
		SET client_min_messages = warning`, lockSlice.Milliseconds())
	if _, err := a.conn.PgConn().Exec(ctx, settings).ReadAll(); err != nil {
		return Result{}, fmt.Errorf("set session parameters: %w", err)
	}
	var result Result
	for _, f := range todo {
		if err := a.apply(ctx, f); err != nil {
			return result, fmt.Errorf("apply %s: %w", f.name, err)
		}
		a.opts.Logger.InfoContext(ctx, "schema file applied", slog.String("file", f.name))
		result.Applied = append(result.Applied, f.name)
	}
	return result, nil
}

// lock waits for other appliers. It polls, because the blocking form would be
// one long statement under the session's statement timeout.
func (a *applier) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, applierWait,
		fmt.Errorf("another process has been applying the schema for %s (advisory lock %d)", applierWait, lockID))
	defer cancel()
	for {
		var got bool
		if err := a.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, lockID).Scan(&got); err != nil {
			return fmt.Errorf("take the applier's lock: %w", err)
		}
		if got {
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	t := time.NewTimer(retryPause/2 + rand.N(retryPause))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// plan lists the files whose recorded sum differs. A newer database plans
// nothing, and is an error unless it admits this build.
func (a *applier) plan(ctx context.Context, files []file) (todo []file, newer bool, err error) {
	rec, err := readRecord(ctx, a.conn)
	if err != nil {
		return nil, false, err
	}
	if rec.generation > Generation {
		return nil, true, rec.admit()
	}
	for _, f := range files {
		if a.opts.Force || rec.sums[f.name] != f.sha {
			todo = append(todo, f)
		}
	}
	return todo, false, nil
}

// apply executes one file piece by piece and records it.
func (a *applier) apply(ctx context.Context, f file) error {
	for _, piece := range split(f.text) {
		if err := a.execute(ctx, piece); err != nil {
			return err
		}
	}
	_, err := a.conn.Exec(ctx, `INSERT INTO queen.schema_files (name, sha256, generation, min_compatible)
		VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO UPDATE
		SET sha256 = excluded.sha256, generation = excluded.generation,
		    min_compatible = excluded.min_compatible, applied_at = now()`, f.name, f.sha, Generation, MinCompatible)
	if err != nil {
		return fmt.Errorf("record the file: %w", err)
	}
	return nil
}

// execute runs one piece, again after a definite abort, until it has waited for
// locks longer than the budget.
func (a *applier) execute(ctx context.Context, piece string) error {
	began := time.Now()
	for {
		blockers := a.watchBlockers(ctx)
		_, err := a.conn.PgConn().Exec(ctx, piece).ReadAll()
		sessions := blockers()
		if err == nil {
			return nil
		}
		// A failed BEGIN block leaves its transaction open.
		if _, rerr := a.conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll(); rerr != nil {
			return errors.Join(err, rerr)
		}
		if !retriable(err) {
			return explain(err, a.db.Config())
		}
		if waited := time.Since(began); waited > a.opts.LockBudget {
			return &BlockedError{Statement: shorten(piece), Waited: waited.Round(time.Second).String(), Sessions: sessions}
		}
		a.opts.Logger.WarnContext(ctx, "schema statement waits for a lock",
			slog.String("statement", shorten(piece)), slog.Any("sessions", sessions))
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// retriable lists the definite aborts of DDL under traffic.
func retriable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "55P03", "40P01", "40001": // lock timeout, deadlock, serialisation
		return true
	case "XX000": // tuple concurrently updated: someone else's DDL on the same row
		return pg.Routine == "simple_heap_update" || pg.Routine == "simple_heap_delete"
	}
	return false
}

// explain adds what an operator can do about a missing privilege.
func explain(err error, cfg pgdb.Config) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return fmt.Errorf("role %q needs CREATE on database %q and must own schema queen: %w", cfg.User, cfg.Database, err)
	}
	return err
}

const shortStatement = 80

func shorten(s string) string {
	if r := []rune(s); len(r) > shortStatement {
		return string(r[:shortStatement]) + "..."
	}
	return s
}
