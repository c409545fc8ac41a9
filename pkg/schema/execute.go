package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/pgdb"

	"github.com/queenmq/queen/pkg/logging"
)

const (
	retryPause     = 250 * time.Millisecond
	shortStatement = 80
	idle           = 'I' // transaction status: none open
)

// createIndex matches the statements that alreadyThere may skip: the name of the
// index, and the schema of its table.
const createIndex = `(?i)^CREATE\s+(?:UNIQUE\s+)?INDEX\s+IF\s+NOT\s+EXISTS\s+(\w+)\s+ON\s+(?:ONLY\s+)?(\w+)\.\w+\s`

// alreadyThere tells whether a piece creates an index that exists. PostgreSQL
// finds that out only after it has the table's SHARE lock, which waits for every
// writer at work and holds up all that come after.
func (a *applier) alreadyThere(ctx context.Context, piece string) (bool, error) {
	m := regexp.MustCompile(createIndex).FindStringSubmatch(piece)
	if m == nil {
		return false, nil
	}
	var exists bool
	err := a.conn.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c
		JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.relkind = 'i' AND n.nspname = lower($2) AND c.relname = lower($1))`, m[1], m[2]).Scan(&exists)
	if err != nil {
		return false, fmt.Errorf("look for index %s: %w", m[1], err)
	}
	return exists, nil
}

// execute runs one piece, again after a definite abort, until Apply has waited
// for locks longer than its budget.
func (a *applier) execute(ctx context.Context, piece string) error {
	for {
		began := time.Now()
		blockers := a.watchBlockers(ctx)
		_, err := a.conn.PgConn().Exec(ctx, piece).ReadAll()
		sessions := blockers()
		if err == nil {
			return nil
		}
		if rerr := a.rollback(ctx); rerr != nil {
			return errors.Join(err, rerr)
		}
		if !retriable(err) {
			return fmt.Errorf("%s: %w", shorten(piece), err)
		}
		a.waited += time.Since(began)
		if a.waited > a.opts.LockBudget {
			return &BlockedError{Statement: shorten(piece), Waited: a.waited, Sessions: sessions, Cause: err}
		}
		a.opts.Logger.WarnContext(ctx, "schema statement waits for a lock",
			slog.String(logging.KeyStatement, shorten(piece)), slog.Any(logging.KeySessions, sessions))
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// rollback ends the transaction that a failed BEGIN block leaves open.
func (a *applier) rollback(ctx context.Context) error {
	if a.conn.IsClosed() || a.conn.PgConn().TxStatus() == idle {
		return nil
	}
	_, err := a.conn.PgConn().Exec(ctx, "ROLLBACK").ReadAll()
	return err
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
	case "23505": // someone else created the same object at the same moment
		return pg.SchemaName == "pg_catalog"
	case "XX000": // tuple concurrently updated: someone else's DDL on the same row
		return pg.Routine == "simple_heap_update" || pg.Routine == "simple_heap_delete"
	}
	return false
}

// pause waits a little, a different time for each applier.
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

// explain adds what an operator can do about a missing privilege.
func explain(err error, cfg pgdb.Config) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == codePrivilege {
		return fmt.Errorf("%w: role %q needs CREATE on database %q, and must own the schemas queen and queen_streams and all in them: %w",
			ErrPrivilege, cfg.User, cfg.Database, err)
	}
	return err
}

// explainRead is explain for a role that only uses the schema.
func explainRead(err error, cfg pgdb.Config) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == codePrivilege {
		return fmt.Errorf("%w: role %q may not use the schema in database %q; `broker migrate` with QUEEN_RUNTIME_ROLE=%s lets it: %w",
			ErrPrivilege, cfg.User, cfg.Database, cfg.User, err)
	}
	return err
}

func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > shortStatement {
		return string(r[:shortStatement]) + "..."
	}
	return s
}
