package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// KVBadRequest is the reason of operations that are none of the others: see
// KVRefused.
const KVBadRequest = "kv_bad_request"

// KVRefused is a call of key/value operations that was refused for what it asked.
// Nothing was written.
//
//nolint:errname // it is an answer, named for what became of the call
type KVRefused struct {
	Reason   string // as the wire names it, kv_bad_ttl for one
	Detail   string // for people: which operation, and what is allowed
	TooLarge bool   // a key or a value is over its limit
	cause    error
}

// Error implements error.
func (e *KVRefused) Error() string { return e.Reason + ": " + e.Detail }

// Unwrap gives the error of the database.
func (e *KVRefused) Unwrap() error { return e.cause }

// KVPrecondition is a call in which a required write was not applied. Nothing was
// written. It is an outcome to expect, and no failure of anything.
//
//nolint:errname // it is an answer, named for what became of the call
type KVPrecondition struct {
	// Known tells that the other fields are set: the database cuts a verdict that
	// is long.
	Known   bool
	Index   int // position of the operation
	Reason  string
	Version int64           // of the row that was in the way, 0 for none
	Value   json.RawMessage // of that row
	cause   error
}

// Error implements error.
func (e *KVPrecondition) Error() string { return "a required precondition was lost" }

// Unwrap gives the error of the database.
func (e *KVPrecondition) Unwrap() error { return e.cause }

// KVApply runs operations of one tenant, all of them or none (kv_apply_v1). ops is a
// JSON array; the answer is one of as many elements, by position. What the call is
// refused for comes back as *KVRefused, a lost required write as *KVPrecondition.
func (s *Store) KVApply(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (RawJSON, error) {
	out, err := s.rawJSON(ctx, "key/value operations", `SELECT queen.kv_apply_v1($1, $2)`, []byte(ops), tenant)
	return out, kvError(err)
}

// KVTogether is KVApply of operations of several callers, none of which waits long for
// a key (kv_together_v1): on any error they have to be repeated one by one.
func (s *Store) KVTogether(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (RawJSON, error) {
	out, err := s.rawJSON(ctx, "key/value operations", `SELECT queen.kv_together_v1($1, $2)`, []byte(ops), tenant)
	return out, kvError(err)
}

// KVPage selects one page of a namespace. A zero limit is the usual one of 100.
type KVPage struct {
	Namespace, Prefix, After string
	Limit                    int
	KeysOnly, IncludeExpired bool
}

// KVList is one page of a namespace for the console (kv_list_v1); *KVRefused for a
// malformed namespace.
func (s *Store) KVList(ctx context.Context, tenant uuid.UUID, p KVPage) (RawJSON, error) {
	var limit *int
	if p.Limit != 0 {
		limit = &p.Limit
	}
	out, err := s.rawJSON(ctx, "list keys", `SELECT queen.kv_list_v1($1, $2, $3, $4, $5, $6, $7)`,
		tenant, p.Namespace, p.Prefix, p.After, limit, p.KeysOnly, p.IncludeExpired)
	return out, kvError(err)
}

// KVNamespaces are the namespaces in which a tenant has rows, with how many
// (kv_namespaces_v1).
func (s *Store) KVNamespaces(ctx context.Context, tenant uuid.UUID) (RawJSON, error) {
	out, err := s.rawJSON(ctx, "list namespaces", `SELECT queen.kv_namespaces_v1($1)`, tenant)
	return out, kvError(err)
}

// kvError gives what the procedures answer to key/value operations its form, and
// leaves other errors as they are.
func kvError(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	switch {
	case pg.Code == "23514" && pg.ConstraintName == "": // raised by the procedure, not by a constraint
		return kvPrecondition(pg, err)
	case (pg.Code == "22023" || pg.Code == "22001") && strings.HasPrefix(pg.Message, "kv_"):
		return &KVRefused{Reason: pg.Message, Detail: pg.Detail, TooLarge: pg.Code == "22001", cause: err}
	case refusedByJSONB(err):
		return &KVRefused{Reason: KVBadRequest, Detail: fmt.Sprintf("the operations cannot be stored as JSON: %s", pg.Message), cause: err}
	}
	return err
}

func kvPrecondition(pg *pgconn.PgError, cause error) *KVPrecondition {
	var verdict struct {
		Index   int             `json:"index"`
		Reason  string          `json:"reason"`
		Version int64           `json:"version"`
		Value   json.RawMessage `json:"value"`
	}
	if json.Unmarshal([]byte(pg.Detail), &verdict) != nil {
		return &KVPrecondition{cause: cause}
	}
	return &KVPrecondition{
		Known: true, Index: verdict.Index, Reason: verdict.Reason, Version: verdict.Version, Value: verdict.Value, cause: cause,
	}
}
