package store

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queenmq/queen/pkg/pgdb"
)

// Class says what a failed call is worth to a caller that could repeat it.
type Class int

// The classes of design rule 10.
const (
	// Permanent errors come back however often the call is repeated.
	Permanent Class = iota
	// Transient errors concern this attempt: a lost race, a server that is
	// restarting, a pool without a free connection.
	Transient
	// RetryLater errors concern the schema, which somebody may be applying:
	// they may go away, and no attempt is charged for them.
	RetryLater
)

// Classify is the one table of SQLSTATEs. An error without a SQLSTATE is a
// broken or missing connection, or a passed deadline, and transient.
func Classify(err error) Class {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if err == nil || errors.Is(err, errAnswer) || isRefused(err) {
			return Permanent
		}
		return Transient
	}
	switch pg.Code {
	case "40001", // serialization_failure, and our own "vanished, try again"
		"40003", // statement_completion_unknown
		"40P01", // deadlock_detected
		"55P03", // lock_not_available
		"25006": // read_only_sql_transaction: a demoted primary
		return Transient
	}
	switch class(pg) {
	case "08", "53", "57", "58": // connection, resources, operator, system
		return Transient
	case "42": // syntax error or access rule: the schema is not what we expect
		return RetryLater
	}
	return Permanent
}

// Ambiguous tells whether a failed call may have committed nevertheless: its
// answer was lost, or could not be read. A server that answered with an error
// has rolled back, except when it was going away; a call that never got a
// connection, or failed before its first byte left, did nothing.
func Ambiguous(err error) bool {
	if err == nil || isRefused(err) || errors.Is(err, pgdb.ErrPool) || pgconn.SafeToRetry(err) {
		return false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		// 57014 is a cancelled statement, rolled back by definition; the others
		// of class 57 and 08 end the session, before or after its commit. 40003
		// says that the server itself does not know.
		return pg.Code == "40003" || pg.Code != "57014" && (class(pg) == "57" || class(pg) == "08")
	}
	return true
}

// isRefused recognises a transaction that was rolled back for what it asked.
func isRefused(err error) bool {
	var refused *TxRefused
	return errors.As(err, &refused)
}

func class(pg *pgconn.PgError) string {
	if len(pg.Code) < 2 {
		return ""
	}
	return strings.ToUpper(pg.Code[:2])
}

// errAnswer marks an answer of a procedure that could not be read.
var errAnswer = errors.New("unreadable answer")

// Unreadable tells that a call was carried out and its answer could not be read.
func Unreadable(err error) bool { return errors.Is(err, errAnswer) }

// Locked tells that a call gave up waiting for a row lock (lock_not_available).
func Locked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}
