package pgdb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPool says that no connection could be had in time: the pool is exhausted
// or the server cannot be reached. Nothing was sent.
var ErrPool = errors.New("pool")

// ErrExhausted is the ErrPool of a pool whose connections are all in use.
var ErrExhausted = fmt.Errorf("%w", ErrPool)

const (
	codeReadOnly           = "25006" // read_only_sql_transaction
	codeTooMany            = "53300" // too_many_connections
	codeInvalidParameter   = "22023"
	codeCanceled           = "57014" // query_canceled
	codeFeature            = "0A000"
	codeStatementName      = "26000"
	codeUndefinedFunction  = "42883"
	codeInternal           = "XX000"
	missingFunctionMessage = "cache lookup failed for function "
)

// sqlState is the code of a server error in err, or empty.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// suspect tells whether the server behind a connection must not be trusted with
// more work: it is going away (57) or broken (58, 08). A broken socket needs no word
// here, since pgx has closed it already. Nor does a server that was demoted and only
// reads: the whole pool is reset then, at a pace, and may read meanwhile.
func suspect(err error) bool {
	code := sqlState(err)
	return strings.HasPrefix(code, "57") || strings.HasPrefix(code, "58") || strings.HasPrefix(code, "08")
}

// sessionSuspect is suspect for a session whose own limit may end a statement.
func sessionSuspect(err error) bool { return sqlState(err) != codeCanceled && suspect(err) }

// ownSuspect is sessionSuspect for a session outside the pool, which no reset reaches.
func ownSuspect(err error) bool { return sqlState(err) == codeReadOnly || sessionSuspect(err) }

// planInvalidated recognises what a statement can meet when a function that it
// uses was dropped and created again after the statement was prepared or
// planned. It was aborted as a whole, so it may be prepared afresh and sent again.
func planInvalidated(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case codeFeature: // cached plan must not change result type
		return pg.Routine == "RevalidateCachedQuery"
	case codeStatementName: // prepared statement does not exist
		return true
	case codeUndefinedFunction: // looked up between the drop and the creation
		return pg.Routine == "ParseFuncOrColumn"
	case codeInternal:
		// Planned with the old function, executed after its replacement. There is
		// no SQLSTATE of its own, and many C functions raise it; internal
		// messages are never translated.
		return strings.HasPrefix(pg.Message, missingFunctionMessage)
	}
	return false
}

// ended adds to err that ctx had ended, and why: what a cancelled statement
// itself returns says neither.
func ended(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, ctx.Err()) {
		cause = fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}
