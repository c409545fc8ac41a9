package schema

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queenmq/queen/pkg/pgdb"

	"github.com/queenmq/queen/pkg/logging"
)

const (
	// lockID serialises appliers (session advisory lock of the schema seed).
	lockID = 778120010

	minServerVersion = 150000

	lockSlice         = 2 * time.Second
	lockBudgetDefault = time.Minute
	turnBudgetDefault = 2 * time.Minute
)

// Options adjusts Apply. The zero value is what a boot uses.
type Options struct {
	// LockBudget is how long Apply may wait altogether for locks that other
	// sessions hold; 0 means a minute.
	LockBudget time.Duration
	// TurnBudget is how long Apply may wait for another applier; 0 means two minutes.
	TurnBudget time.Duration
	// Force applies every file again, whatever the record says.
	Force bool
	// Logger receives progress; nil drops it.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.LockBudget <= 0 {
		o.LockBudget = lockBudgetDefault
	}
	if o.TurnBudget <= 0 {
		o.TurnBudget = turnBudgetDefault
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Result says what Apply did.
type Result struct {
	Applied []string // files that were executed, in order
	Newer   bool     // the database is of a newer generation; nothing was applied
	// Found is the generation of the database before; 0: it had none.
	Found int
}

// Apply brings the database to this build's schema. It is safe to call from
// any number of processes at once and on a database under traffic. It needs a
// connection that stays on one server session: direct, or a pooler in session
// mode. The errors are ErrServerTooOld, ErrTooNew, ErrUnknownFiles,
// ErrPrivilege, a *BlockedError, or the failing file and cause.
func Apply(ctx context.Context, db *pgdb.DB, opts Options) (Result, error) {
	files, err := embedded()
	if err != nil {
		return Result{}, err
	}
	return applyFiles(ctx, db, files, opts.withDefaults())
}

func applyFiles(ctx context.Context, db *pgdb.DB, files []file, opts Options) (Result, error) {
	conn, err := db.Session(ctx)
	if err != nil {
		return Result{}, err
	}
	// Closing the session also gives up the advisory lock.
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := checkServer(ctx, conn); err != nil {
		return Result{}, err
	}
	a := &applier{conn: conn, db: db, opts: opts, files: files}
	result, err := a.run(ctx)
	return result, explain(err, db.Config())
}

type applier struct {
	conn   *pgx.Conn
	db     *pgdb.DB
	opts   Options
	files  []file
	pid    int32         // of the server's process; a pooler invents its own in the protocol
	waited time.Duration // for locks, so far
}

// plan is what is to be done.
type plan struct {
	todo  []file // to execute
	lift  bool   // the record's generation is to be raised
	newer bool   // the database is ahead: nothing is to be done
	found int    // the generation of the database
	other bool   // another build of this generation has applied its files
}

func (p plan) done() bool { return p.newer || len(p.todo) == 0 && !p.lift }

func (a *applier) run(ctx context.Context) (Result, error) {
	// Without the lock first: an identical boot only reads.
	p, err := a.plan(ctx)
	if err != nil || p.done() {
		return Result{Newer: p.newer, Found: p.found}, err
	}
	if err := a.lock(ctx); err != nil {
		return Result{}, err
	}
	// Another applier may have been at work meanwhile.
	if p, err = a.plan(ctx); err != nil || p.done() {
		return Result{Newer: p.newer, Found: p.found}, err
	}
	if err := a.prepare(ctx); err != nil {
		return Result{}, err
	}
	if p.other {
		a.opts.Logger.WarnContext(ctx, "the database has files of another build of this generation, which are replaced",
			slog.Int(logging.KeyGeneration, Generation))
	}
	result := Result{Found: p.found}
	for _, f := range p.todo {
		if err := a.apply(ctx, f); err != nil {
			return result, fmt.Errorf("apply %s: %w", f.name, err)
		}
		a.opts.Logger.InfoContext(ctx, "schema file applied", slog.String(logging.KeyFile, f.name))
		result.Applied = append(result.Applied, f.name)
	}
	return result, a.lift(ctx)
}

// plan compares the record with this build.
func (a *applier) plan(ctx context.Context) (plan, error) {
	rec, err := readRecord(ctx, a.conn)
	if err != nil {
		return plan{}, err
	}
	if newer, err := rec.newer(); newer {
		return plan{newer: true, found: rec.generation}, err
	}
	if err := rec.checkKnown(a.files); err != nil {
		return plan{}, err
	}
	if a.opts.Force {
		return plan{todo: a.files, lift: true, found: rec.generation}, nil
	}
	todo, complete := rec.outdated(a.files), rec.complete(a.files)
	return plan{todo: todo, lift: !complete, found: rec.generation, other: complete && len(todo) > 0}, nil
}

// lock waits for other appliers. It polls, because the blocking form would be
// one long statement under the session's statement timeout.
func (a *applier) lock(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, a.opts.TurnBudget)
	defer cancel()
	for {
		var got bool
		if err := a.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, lockID).Scan(&got); err != nil {
			return fmt.Errorf("take the appliers' lock: %w", err)
		}
		if got {
			return nil
		}
		if pause(waiting) == nil {
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for another applier: %w", context.Cause(ctx))
		}
		sessions, err := a.holders(ctx)
		if err != nil {
			return err
		}
		return &BlockedError{
			Statement: fmt.Sprintf("advisory lock %d, which another applier holds", lockID),
			Waited:    a.opts.TurnBudget, Sessions: sessions,
		}
	}
}

// prepare sets up the session for DDL, which may take its time; waiting for a
// lock may not. Bodies may name functions of later files.
func (a *applier) prepare(ctx context.Context) error {
	settings := fmt.Sprintf(`SET statement_timeout = 0; SET lock_timeout = %d;
		SET idle_in_transaction_session_timeout = '60s'; SET check_function_bodies = off;
		SET client_min_messages = warning; SET search_path = ''`, lockSlice.Milliseconds())
	if _, err := a.conn.PgConn().Exec(ctx, settings).ReadAll(); err != nil {
		return fmt.Errorf("set session parameters: %w", err)
	}
	if err := a.conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&a.pid); err != nil {
		return fmt.Errorf("read the session's process: %w", err)
	}
	return nil
}

// apply executes one file piece by piece and records it.
func (a *applier) apply(ctx context.Context, f file) error {
	pieces, err := split(f.text)
	if err != nil {
		return err
	}
	for _, piece := range pieces {
		skip, err := a.alreadyThere(ctx, piece)
		if err != nil {
			return err
		}
		if skip {
			continue
		}
		if err := a.execute(ctx, piece); err != nil {
			return err
		}
	}
	_, err = a.conn.Exec(ctx, `INSERT INTO queen.schema_files (name, sha256, generation, min_compatible)
		VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO UPDATE
		SET sha256 = excluded.sha256, generation = excluded.generation,
		    min_compatible = excluded.min_compatible, applied_at = now()`, f.name, f.sha, Generation, MinCompatible)
	if err != nil {
		return fmt.Errorf("record the file: %w", err)
	}
	return nil
}

// lift raises the generation of the files that did not change. Only then is the
// database of this generation: Check looks at all of them.
func (a *applier) lift(ctx context.Context) error {
	names := make([]string, len(a.files))
	for i, f := range a.files {
		names[i] = f.name
	}
	_, err := a.conn.Exec(ctx, `UPDATE queen.schema_files SET generation = $1, min_compatible = $2
		WHERE name = ANY($3) AND generation < $1`, Generation, MinCompatible, names)
	if err != nil {
		return fmt.Errorf("record the generation: %w", err)
	}
	return nil
}
