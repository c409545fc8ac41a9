package timers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// Codes of the family.
const (
	CodeBadRequest      = "timers_bad_request"
	CodeHorizonExceeded = "timer_horizon_exceeded"
	CodeUnavailable     = "timers_unavailable"
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
	var refused *store.TimersRefused
	switch {
	case errors.As(err, &refused) && strings.HasPrefix(refused.Text, procedurePrefix):
		return &wire.Refusal{Status: http.StatusBadRequest, Code: CodeBadRequest, Reason: refused.Text, Detail: refused.Hint}
	case errors.As(err, &refused): // the decoder of base64 speaks for itself
		return badRequest(ReasonPayloadNotBase64, "%s", refused.Text)
	case errors.Is(err, pgdb.ErrPool) && errors.Is(err, context.DeadlineExceeded):
		return unavailable(reasonPool, err)
	case errors.Is(err, pgdb.ErrPool):
		return unavailable(reasonConnection, err)
	case errors.Is(err, context.DeadlineExceeded):
		return unavailable(reasonTimeout, err)
	case store.Unreadable(err):
		return broken(CodeError, reasonUnreadable, err)
	}
	switch store.Classify(err) {
	case store.Transient:
		return unavailable(cmp.Or(store.ServerMessage(err), reasonConnection), err)
	case store.RetryLater:
		return broken(CodeMisconfigured, "", err)
	}
	return broken(CodeError, "", err)
}

func unavailable(reason string, err error) *wire.Refusal {
	return &wire.Refusal{
		Status: http.StatusServiceUnavailable, Code: CodeUnavailable, Reason: reason, Detail: err.Error(), RetryAfter: retryAfter,
	}
}

// broken is a failure that repeating does not cure.
func broken(code, reason string, err error) *wire.Refusal {
	return &wire.Refusal{Status: http.StatusInternalServerError, Code: code, Reason: reason, Detail: err.Error()}
}
