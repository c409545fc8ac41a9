package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

const jsonType = "application/json"

// allowPrefix is what echo lists although it is answered 405 like any other
// method that a route does not have.
const allowPrefix = http.MethodOptions + ", "

// respond writes a JSON answer.
func respond(c echo.Context, status int, body []byte) error {
	return respondAs(c, status, jsonType, body)
}

// respondAs writes an answer of any type.
func respondAs(c echo.Context, status int, contentType string, body []byte) error {
	expectWrite(c, len(body))
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, contentType)
	header.Set(echo.HeaderContentLength, strconv.Itoa(len(body)))
	c.Response().WriteHeader(status)
	_, err := c.Response().Write(body)
	if c.Request().Context().Err() != nil {
		return nil //nolint:nilerr // writing fails because the client has left, and nobody is there to be told
	}
	return err
}

// respondIn is respond with a body that is written into lent memory, of which it
// takes about size bytes.
func (a *API) respondIn(c echo.Context, status, size int, write func(dst []byte) []byte) error {
	body := write(a.deps.Replies.Get(size))
	defer a.deps.Replies.Put(body)
	return respond(c, status, body)
}

// nothing answers 204, which has neither a body nor headers that describe one:
// strict clients break on a Content-Length there.
func nothing(c echo.Context) error {
	expectWrite(c, 0)
	return c.NoContent(http.StatusNoContent)
}

// answerPatience is how long a client may pause while it takes an answer, beyond
// what a slow line needs.
const answerPatience = 30 * time.Second

// expectWrite gives a client as long to take the answer as it has to send one.
// Every answer sets the deadline: the connection may still have that of an
// earlier one.
func expectWrite(c echo.Context, size int) {
	_ = http.NewResponseController(c.Response()).SetWriteDeadline(time.Now().Add(answerPatience + transferTime(int64(size))))
}

type errorBody struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
}

// fail answers an error and logs it where an operator has to know.
func (a *API) fail(c echo.Context, err error) {
	ctx := c.Request().Context()
	f := failureOf(ctx, err)
	a.logFailure(ctx, c.Request().Method, c.Path(), func() []slog.Attr { return placeOf(c) }, f, err)
	if c.Response().Committed {
		return
	}
	if f.status == statusClientGone {
		c.Response().Status = statusClientGone // for logs and metrics
		c.Response().Committed = true
		return
	}
	switch {
	case f.refusal != nil:
		refuse(c, f.refusal)
		return
	case f.status == http.StatusMethodNotAllowed:
		allow, _ := c.Get(echo.ContextKeyHeaderAllow).(string)
		c.Response().Header().Set(echo.HeaderAllow, strings.TrimPrefix(allow, allowPrefix))
	case f.status == http.StatusTooManyRequests:
		c.Response().Header().Set(echo.HeaderRetryAfter, retryAfter())
	case f.status == http.StatusRequestTimeout:
		c.Response().Header().Set(echo.HeaderConnection, "close")
	}
	_ = respond(c, f.status, errorJSON(f))
}

// refuse answers a refusal.
func refuse(c echo.Context, r *wire.Refusal) {
	setRetryAfter(c, r)
	if r.Hint != "" {
		c.Response().Header().Set(headerTimersHint, r.Hint)
	}
	_ = respond(c, r.Status, wire.AppendRefusal(nil, r))
}

// setRetryAfter tells when a refused request may be sent again, if ever.
func setRetryAfter(c echo.Context, r *wire.Refusal) {
	if seconds := r.RetrySeconds(); seconds > 0 {
		c.Response().Header().Set(echo.HeaderRetryAfter, strconv.Itoa(seconds))
	}
}

// headerTimersHint names the route by which a refused batch can do a part of its work.
const headerTimersHint = "x-queen-timers-hint"

// retryAfter is when a refused client may ask again.
func retryAfter() string { return strconv.Itoa(int(admission.RetryAfter / time.Second)) }

func errorJSON(f failure) []byte {
	body, err := json.Marshal(errorBody{Error: f.text, Code: f.code})
	if err != nil { // strings always encode
		return []byte(`{"error":"internal error"}`)
	}
	return body
}

// placeOf is the queue, the lane and the group that the address of a request names. Of
// what bodies name, those who work on it log their failures.
func placeOf(c echo.Context) []slog.Attr {
	var place []slog.Attr
	add := func(key, raw string) {
		if name, err := url.PathUnescape(raw); err == nil && name != "" {
			place = append(place, slog.String(key, name)) //nolint:sloglint // one of pkg/logging
		}
	}
	add(logging.KeyQueue, c.Param("queue"))
	if strings.HasPrefix(c.Path(), "/api/v1/pop/") {
		add(logging.KeyPartition, c.Param("*"))
	}
	add(logging.KeyPartitionID, c.Param("partitionId"))
	add(logging.KeyGroup, c.Param("group"))
	if group := c.QueryParam("consumerGroup"); group != "" {
		place = append(place, slog.String(logging.KeyGroup, group))
	}
	return place
}

// placeOfPop is that of a pop.
func placeOfPop(req *pop.Request) []slog.Attr {
	return []slog.Attr{
		slog.String(logging.KeyQueue, req.Queue), slog.String(logging.KeyPartition, req.Partition), slog.String(logging.KeyGroup, req.Query.Group),
	}
}

// logFailure logs 5xx as errors. During an outage of the database every request
// fails in the same way, so those lines are thinned out.
func (a *API) logFailure(ctx context.Context, method, route string, place func() []slog.Attr, f failure, err error) {
	if f.status < http.StatusInternalServerError || errors.Is(err, errPanic) {
		return
	}
	line := func() {
		attrs := []slog.Attr{slog.String(logging.KeyMethod, method), slog.String(logging.KeyRoute, route), slog.Int(logging.KeyStatus, f.status)}
		a.deps.Log.LogAttrs(ctx, slog.LevelError, "request failed", append(append(attrs, place()...), logging.Err(err))...)
	}
	if f.refusal != nil && f.status == http.StatusServiceUnavailable {
		if f.refusal.Cause != nil { // else somebody has switched it off
			a.outage.Do(line)
		}
		return
	}
	if errors.Is(err, pgdb.ErrPool) || errors.Is(err, pop.ErrPool) || errors.Is(err, pop.ErrFailed) {
		a.outage.Do(line)
		return
	}
	line()
}
