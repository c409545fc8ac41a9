package timers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// Codes of the family.
const (
	CodeBadRequest      = "timers_bad_request"
	CodeHorizonExceeded = "timer_horizon_exceeded"
	CodeMisconfigured   = "timers_misconfigured"
	CodeError           = "timers_error"
)

// Reasons of refusals. The procedure has more, texts that begin with QTIMER.
const (
	ReasonBadBody          = "timers_bad_body"
	ReasonBadOp            = "timers_bad_op"
	ReasonTooManyOps       = "timers_too_many_ops"
	ReasonServerOwned      = "timers_server_owned_field"
	ReasonQueueRequired    = "timers_queue_required"
	ReasonDelayRequired    = "timers_delay_required"
	ReasonPayloadRequired  = "timers_payload_required"
	ReasonPayloadNotBase64 = "timers_payload_not_base64"
	ReasonPayloadTooLarge  = "timers_payload_too_large"
	ReasonHorizon          = "timers_horizon"
)

// badRequest is a 400 of the family.
func badRequest(reason, format string, args ...any) *wire.Refusal {
	return &wire.Refusal{Status: http.StatusBadRequest, Code: CodeBadRequest, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// The rest of the reasons.
const (
	reasonPool       = "timers_pool_exhausted"
	reasonTimeout    = "timers_timeout"
	reasonConnection = "connection"
	reasonUnreadable = "timers_result_unreadable"
	reasonMissing    = "timers_result_missing"
)

// retryAfter is when a call that met no healthy database may come again.
const retryAfter = time.Second

// procedurePrefix begins what the procedures refuse calls with.
const procedurePrefix = "QTIMER"

// refusalOf is what a failed call of the store is answered with.
func refusalOf(err error) *wire.Refusal {
	var asked *store.TimersRefused
	r := failure(err)
	if errors.As(err, &asked) {
		r = refusedFor(asked)
	}
	r.Cause = err
	return r
}

func refusedFor(r *store.TimersRefused) *wire.Refusal {
	if strings.HasPrefix(r.Text, procedurePrefix) {
		return &wire.Refusal{Status: http.StatusBadRequest, Code: CodeBadRequest, Reason: r.Text, Detail: r.Hint}
	}
	return badRequest(ReasonPayloadNotBase64, "%s", r.Text) // the decoder speaks for itself
}

// failure is the table of what else the database does.
func failure(err error) *wire.Refusal {
	text, answered := errtext.Database(err)
	switch {
	case errors.Is(err, pgdb.ErrExhausted):
		return unavailable(reasonPool, "all connections for timers are in use")
	case errors.Is(err, pgdb.ErrPool):
		return unavailable(reasonConnection, "the database cannot be reached")
	case errors.Is(err, context.DeadlineExceeded), errtext.Canceled(err):
		return unavailable(reasonTimeout, errtext.Timeout)
	case store.Unreadable(err):
		return broken(CodeError, reasonUnreadable, err.Error())
	case !answered:
		return unavailable(reasonConnection, "the connection to the database was lost")
	}
	switch store.Classify(err) {
	case store.Transient:
		return unavailable(text, "")
	case store.RetryLater:
		return broken(CodeMisconfigured, "", text)
	}
	return broken(CodeError, "", text)
}

func unavailable(reason, detail string) *wire.Refusal {
	return &wire.Refusal{
		Status: http.StatusServiceUnavailable, Code: quota.CodeTimersAbsent, Reason: reason, Detail: detail, RetryAfter: retryAfter,
	}
}

// broken is a failure that repeating does not cure.
func broken(code, reason, detail string) *wire.Refusal {
	return &wire.Refusal{Status: http.StatusInternalServerError, Code: code, Reason: reason, Detail: detail}
}
