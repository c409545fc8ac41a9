package schema

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrNotReady says that the database does not have the schema yet, or has
	// an older generation than this build needs.
	ErrNotReady = errors.New("the schema is not ready")
	// ErrTooNew says that the database was written by a newer build that does
	// not admit this one.
	ErrTooNew = errors.New("the database is newer than this build admits")
	// ErrUnknownFiles says that the database was written by another build of the
	// same generation, which has files that this one does not know.
	ErrUnknownFiles = errors.New("the database holds schema files that this build does not know")
	// ErrServerTooOld says that PostgreSQL itself is too old.
	ErrServerTooOld = errors.New("PostgreSQL 15 or newer is required")
	// ErrPrivilege says that the role may not do what applying needs.
	ErrPrivilege = errors.New("the database role lacks a privilege")
	// ErrBlocked says that a lock could not be had within the budget.
	ErrBlocked = errors.New("blocked by other sessions")
)

// BlockedError names the sessions that kept a statement from its lock.
// It unwraps to ErrBlocked and to what the last attempt met.
type BlockedError struct {
	Statement string // shortened
	Waited    time.Duration
	Sessions  []string // one line each; empty when none could be seen
	Cause     error
}

// Error implements error.
func (e *BlockedError) Error() string {
	by := "no blocking session could be seen"
	if len(e.Sessions) > 0 {
		by = "blocking sessions: " + strings.Join(e.Sessions, "; ")
	}
	return fmt.Sprintf("no lock for %q within %s; %s", e.Statement, e.Waited.Round(time.Millisecond), by)
}

// Unwrap makes errors.Is(err, ErrBlocked) hold.
func (e *BlockedError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrBlocked}
	}
	return []error{ErrBlocked, e.Cause}
}
