package kv

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// Codes of what fails without being anybody's fault.
const (
	codeMisconfigured = "kv_misconfigured"
	codeError         = "kv_error"
)

// retryAfter is when a call may come again that found the database busy or away.
const retryAfter = time.Second

// codeCanceled is the SQLSTATE of a statement that took too long.
const codeCanceled = "57014"

// paused refuses a write while calls find no connection.
func paused() error {
	return unavailable("kv_standalone_paused", "writes outside of transactions are paused while the connections for keys are used up")
}

// refusal is what the wire says about a call of the store that failed.
func refusal(err error) error {
	var asked *store.KVRefused
	r := failure(err)
	if errors.As(err, &asked) {
		r = refusedFor(asked)
	}
	r.Cause = err
	return r
}

func refusedFor(r *store.KVRefused) *wire.Refusal {
	out := &wire.Refusal{Status: http.StatusBadRequest, Code: CodeBadRequest, Reason: r.Reason, Detail: r.Detail}
	if r.TooLarge {
		out.Status, out.Code = http.StatusRequestEntityTooLarge, wire.CodePayloadTooLarge
	}
	return out
}

// failure is the table of what else the database does.
func failure(err error) *wire.Refusal {
	text, answered := errtext.Database(err)
	switch {
	case errors.Is(err, pgdb.ErrExhausted):
		return unavailable("kv_pool_exhausted", "all connections for keys are in use")
	case errors.Is(err, pgdb.ErrPool):
		return unavailable("connection", "the database cannot be reached")
	case errors.Is(err, context.DeadlineExceeded), sqlState(err) == codeCanceled:
		return unavailable("kv_timeout", errtext.Timeout)
	case !answered:
		return unavailable("connection", "the connection to the database was lost")
	}
	switch store.Classify(err) {
	case store.Transient:
		return unavailable(text, "")
	case store.RetryLater:
		return &wire.Refusal{Status: http.StatusInternalServerError, Code: codeMisconfigured, Detail: text}
	}
	return &wire.Refusal{Status: http.StatusInternalServerError, Code: codeError, Detail: text}
}

func unavailable(reason, detail string) *wire.Refusal {
	return &wire.Refusal{
		Status: http.StatusServiceUnavailable, Code: quota.CodeKVUnavailable, Reason: reason, Detail: detail, RetryAfter: retryAfter,
	}
}

func misread(reason, detail string) error {
	return &wire.Refusal{Status: http.StatusInternalServerError, Code: codeError, Reason: reason, Detail: detail}
}

func sqlState(err error) string {
	var coded interface {
		error
		SQLState() string
	}
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}
