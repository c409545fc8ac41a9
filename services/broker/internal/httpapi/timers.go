package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

// Timers keeps messages that are delivered later. Its errors are *wire.Refusal.
type Timers interface {
	Apply(ctx context.Context, tenant uuid.UUID, producerSub string, ops json.RawMessage) (store.RawJSON, error)
	Cancel(ctx context.Context, tenant uuid.UUID, queue, key, txn string) (store.RawJSON, error)
	Peek(ctx context.Context, tenant uuid.UUID, queue, key string) (store.RawJSON, error)
	List(ctx context.Context, tenant uuid.UUID, queue, after string, limit int) (store.RawJSON, error)
	Count(ctx context.Context, tenant uuid.UUID, queue, prefix string) (int64, error)
}

func (a *API) addTimerRoutes() {
	a.route(http.MethodPost, "/api/v1/timers", WriteOnly, a.applyTimers)
	a.read("/api/v1/timers/:queue", ReadOnly, a.listTimers)
	// A key may hold slashes, escaped or not.
	a.read("/api/v1/timers/:queue/*", ReadOnly, a.peekTimer)
	a.route(http.MethodDelete, "/api/v1/timers/:queue/*", ReadWrite, a.cancelTimer)
}

// Limits of what the timer routes take in the path and the query.
const (
	maxTimerKeyBytes    = 1024
	maxTimerPrefixBytes = 128
	timersLimitDefault  = 100
	timersLimitMax      = 1000
)

// Reasons that only the routes have.
const (
	reasonBadQuery       = "timers_bad_query"
	reasonBadName        = "timers_bad_name"
	reasonBodyTooLarge   = "timers_body_too_large"
	reasonBodies         = "timers_bodies_in_flight"
	reasonModeUnknown    = "timers_read_mode_unknown"
	reasonPrefixRequired = "timers_count_prefix_required"
	reasonPrefixInvalid  = "timers_count_prefix_invalid"
	reasonPrefixTooLong  = "timers_count_prefix_too_long"
	reasonCountPage      = "timers_count_not_paged"
)

// refuseTimers is a 400 of the timer routes.
func refuseTimers(reason, format string, args ...any) error {
	return &wire.Refusal{
		Status: http.StatusBadRequest, Code: timers.CodeBadRequest, Reason: reason, Detail: fmt.Sprintf(format, args...),
	}
}

// applyTimers handles POST /api/v1/timers.
func (a *API) applyTimers(c echo.Context) error {
	b, err := a.bodies.read(c.Response(), c.Request(), intake)
	if err != nil {
		return timersBodyError(err)
	}
	defer b.release()
	ops, err := wire.ParseOperations(b.bytes())
	if err != nil {
		return timersBodyError(err)
	}
	results, err := a.deps.Timers.Apply(c.Request().Context(), a.tenant(c), a.producer(c), ops)
	if err != nil {
		return err
	}
	return a.respondIn(c, http.StatusOK, len(results)+len(`{"results":}`), func(dst []byte) []byte {
		return wire.AppendResults(dst, results)
	})
}

// timersBodyError gives what is wrong with a body the envelope of the family.
func timersBodyError(err error) error {
	var bad *wire.Error
	switch {
	case errors.As(err, &bad):
		return refuseTimers(timers.ReasonBadBody, "%s", bad.Text)
	case errors.Is(err, errCutOff), errors.Is(err, errFraming):
		return refuseTimers(timers.ReasonBadBody, "bad body: %v", err)
	case errors.Is(err, errTooLarge):
		return &wire.Refusal{
			Status: http.StatusRequestEntityTooLarge, Code: wire.CodePayloadTooLarge, Reason: reasonBodyTooLarge, Detail: err.Error(),
		}
	case errors.Is(err, errBusy):
		return &wire.Refusal{
			Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, Reason: reasonBodies, Detail: err.Error(), RetryAfter: admission.RetryAfter,
		}
	}
	return err
}

// cancelTimer handles DELETE /api/v1/timers/:queue/*. Of a body nothing is read.
func (a *API) cancelTimer(c echo.Context) error {
	queue, key, err := timerNames(c)
	if err != nil {
		return err
	}
	q, err := timersQuery(c)
	if err != nil {
		return err
	}
	txn := q.Get("txn")
	if err := timerName(wire.KindTransactionID, "txn", txn); err != nil {
		return err
	}
	result, err := a.deps.Timers.Cancel(c.Request().Context(), a.tenant(c), queue, key, txn)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, result)
}

// peekTimer handles GET /api/v1/timers/:queue/*.
func (a *API) peekTimer(c echo.Context) error {
	queue, key, err := timerNames(c)
	if err != nil {
		return err
	}
	doc, err := a.deps.Timers.Peek(c.Request().Context(), a.tenant(c), queue, key)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, doc)
}

// listTimers handles GET /api/v1/timers/:queue, which lists or counts.
func (a *API) listTimers(c echo.Context) error {
	queue, err := timersQueue(c)
	if err != nil {
		return err
	}
	q, err := timersQuery(c)
	if err != nil {
		return err
	}
	switch mode := q.Get("mode"); mode {
	case "", "list":
	case "count":
		return a.countTimers(c, queue, q)
	default:
		return refuseTimers(reasonModeUnknown, "mode must be list or count")
	}
	after := q.Get("after")
	if fault := textFault(after); fault != "" {
		return refuseTimers(reasonBadQuery, "after: %s", fault)
	}
	doc, err := a.deps.Timers.List(c.Request().Context(), a.tenant(c), queue, after, timersLimit(q.Get("limit")))
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, doc)
}

// timersLimit is the size of a page: the nearest one that is allowed, or the usual
// one for what is no number.
func timersLimit(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return timersLimitDefault
	}
	return min(max(n, 1), timersLimitMax)
}

func (a *API) countTimers(c echo.Context, queue string, q url.Values) error {
	prefix := q.Get("prefix")
	switch {
	case q.Has("after"), q.Has("limit"):
		return refuseTimers(reasonCountPage, "a count takes neither after nor limit")
	case prefix == "":
		return refuseTimers(reasonPrefixRequired, "a count needs a prefix of 1 to %d bytes", maxTimerPrefixBytes)
	case len(prefix) > maxTimerPrefixBytes:
		return refuseTimers(reasonPrefixTooLong, "prefix: longer than %d bytes", maxTimerPrefixBytes)
	}
	if fault := textFault(prefix); fault != "" {
		return refuseTimers(reasonPrefixInvalid, "prefix: %s", fault)
	}
	n, err := a.deps.Timers.Count(c.Request().Context(), a.tenant(c), queue, prefix)
	if err != nil {
		return err
	}
	return respondValue(c, http.StatusOK, struct {
		Count int64 `json:"count"`
	}{n})
}

// timerNames are the queue and the key in the path, each decoded once.
func timerNames(c echo.Context) (queue, key string, err error) {
	if queue, err = timersQueue(c); err != nil {
		return "", "", err
	}
	key, err = url.PathUnescape(c.Param("*"))
	if err != nil {
		return "", "", refuseTimers(reasonBadName, "bad timerKey in the path: %v", err)
	}
	fault := textFault(key)
	switch {
	case key == "":
		fault = "missing in the path"
	case len(key) > maxTimerKeyBytes:
		fault = fmt.Sprintf("longer than %d bytes", maxTimerKeyBytes)
	}
	if fault != "" {
		return "", "", refuseTimers(reasonBadName, "timerKey: %s", fault)
	}
	return queue, key, nil
}

func timersQueue(c echo.Context) (string, error) {
	queue, err := url.PathUnescape(c.Param("queue"))
	switch {
	case err != nil:
		return "", refuseTimers(reasonBadName, "bad queue in the path: %v", err)
	case queue == "":
		return "", refuseTimers(timers.ReasonQueueRequired, "queue: missing in the path")
	}
	return queue, timerName(wire.KindQueue, wire.KindQueue, queue)
}

// timerName checks a name that the wire limits, under the name that it has here.
func timerName(kind, called, value string) error {
	if err := wire.CheckName(kind, value); err != nil {
		return refuseTimers(reasonBadName, "%s: %s", called, strings.TrimPrefix(err.Error(), kind+": "))
	}
	return nil
}

// textFault is what keeps a text from being one for PostgreSQL, "" for nothing.
func textFault(s string) string {
	switch {
	case !utf8.ValidString(s):
		return "not valid UTF-8"
	case strings.ContainsRune(s, 0):
		return "holds a NUL"
	}
	return ""
}

func timersQuery(c echo.Context) (url.Values, error) {
	q, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, refuseTimers(reasonBadQuery, "bad query: %s", strings.TrimPrefix(err.Error(), "invalid "))
	}
	return q, nil
}
