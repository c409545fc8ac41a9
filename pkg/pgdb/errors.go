package pgdb

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPool says that no connection could be had in time: the pool is exhausted
// or the server cannot be reached.
var ErrPool = errors.New("pool")

// suspect tells whether a connection must not be used again after err: its
// deadline passed, it broke, or its server is going away or has become read-only.
func suspect(err error) bool {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true
	}
	switch class := pg.Code[:2]; {
	case class == "08", class == "58", pg.Code == "25006":
		return true
	case class == "57":
		return true
	}
	return false
}

// planInvalidated recognises the answers to a prepared statement whose function
// was replaced after it was planned. Nothing was executed, so the statement may
// be prepared afresh and sent again.
func planInvalidated(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case "0A000": // cached plan must not change result type
		return pg.Routine == "RevalidateCachedQuery"
	case "26000": // prepared statement does not exist
		return true
	case "42883": // a function is dropped and created again in one transaction
		return pg.Routine == "ParseFuncOrColumn"
	case "XX000": // planned with the old function, executed after its replacement
		return strings.HasPrefix(pg.Routine, "fmgr_info")
	}
	return false
}
