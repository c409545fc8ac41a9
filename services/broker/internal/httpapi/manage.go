package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// configure handles POST /api/v1/configure.
func (a *API) configure(c echo.Context) error {
	return a.withBody(c, func(body []byte) error {
		req, err := wire.ParseConfigure(body)
		if err != nil {
			return err
		}
		tenant := a.tenant(c)
		doc, err := a.deps.Store.Configure(c.Request().Context(), tenant, req.Queue, req.Options, req.Merge)
		if err != nil {
			return &callError{"configure", err}
		}
		status := passThroughStatus(doc)
		if status == http.StatusOK {
			a.deps.QueueChanged(tenant, req.Queue, false)
		}
		return respond(c, status, doc)
	})
}

// listQueues handles GET /api/v1/resources/queues.
func (a *API) listQueues(c echo.Context) error {
	doc, err := a.deps.Store.ListQueues(c.Request().Context(), a.tenant(c))
	if err != nil {
		return &callError{"queue list", err}
	}
	return respond(c, passThroughStatus(doc), doc)
}

// getQueue handles GET /api/v1/resources/queues/:queue.
func (a *API) getQueue(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	doc, err := a.deps.Store.GetQueue(c.Request().Context(), a.tenant(c), queue)
	if err != nil {
		return &callError{"queue lookup", err}
	}
	return respond(c, passThroughStatus(doc), doc)
}

// deleteQueue handles DELETE /api/v1/resources/queues/:queue.
func (a *API) deleteQueue(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	tenant := a.tenant(c)
	doc, err := a.deps.Store.DeleteQueue(c.Request().Context(), tenant, queue)
	if err != nil {
		return &callError{"queue delete", err}
	}
	a.deps.QueueChanged(tenant, queue, true)
	return respond(c, passThroughStatus(doc), doc)
}

// passThroughStatus is the status of a procedure's own answer, which goes to the
// client unchanged.
func passThroughStatus(doc []byte) int {
	var verdict struct {
		Error   json.RawMessage `json:"error"`
		Invalid json.RawMessage `json:"invalid"` // names the option that was refused
	}
	if err := json.Unmarshal(doc, &verdict); err != nil || verdict.Error == nil || string(verdict.Error) == "null" {
		return http.StatusOK
	}
	switch {
	case verdict.Invalid != nil:
		return http.StatusBadRequest
	case strings.Contains(strings.ToLower(string(verdict.Error)), "not found"):
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}

const (
	dlqLimitDefault = 100
	// dlqLimitMax bounds one answer; its rows carry whole payloads. The answer's
	// pagination shows the limit that was applied.
	dlqLimitMax = 1000
)

// dlq handles GET /api/v1/dlq.
func (a *API) dlq(c echo.Context) error {
	q, err := query(c)
	if err != nil {
		return err
	}
	filter, err := dlqFilter(q)
	if err != nil {
		return err
	}
	filter.Tenant = a.tenant(c)
	doc, err := a.deps.Store.DLQMessages(c.Request().Context(), filter)
	if err != nil {
		return &callError{"dlq lookup", err}
	}
	return respond(c, passThroughStatus(doc), doc)
}

// dlqFilter reads the parameters. An empty one counts as absent.
func dlqFilter(q url.Values) (store.DLQFilter, error) {
	f := store.DLQFilter{
		Queue: q.Get("queue"), ConsumerGroup: q.Get("consumerGroup"), Partition: q.Get("partition"),
	}
	for kind, value := range map[string]string{
		wire.KindQueue: f.Queue, wire.KindGroup: f.ConsumerGroup, wire.KindPartition: f.Partition,
	} {
		if err := wire.CheckName(kind, value); err != nil {
			return f, err
		}
	}
	var err error
	if f.Limit, err = number(q, "limit", dlqLimitDefault); err != nil {
		return f, err
	}
	f.Limit = min(f.Limit, dlqLimitMax)
	if f.Offset, err = number(q, "offset", 0); err != nil {
		return f, err
	}
	if f.From, err = instant(q, "from"); err != nil {
		return f, err
	}
	f.To, err = instant(q, "to")
	return f, err
}

// number reads a count: a whole number from 0 to 2^31-1.
func number(q url.Values, param string, fallback int) (int, error) {
	text := strings.TrimSpace(q.Get(param))
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0, badRequest(param + " must be a whole number, 0 or more")
	}
	return int(n), nil
}

// instant reads a point in time, in the spellings that clients use. One without
// a zone is UTC.
func instant(q url.Values, param string) (time.Time, error) {
	// A plus sign that was not escaped arrives as a blank.
	text := strings.ReplaceAll(strings.TrimSpace(q.Get(param)), " ", "+")
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, badRequest(param + " must be an ISO 8601 instant")
}
