package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

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
	if !bytes.Contains(doc, []byte(`"error"`)) {
		return http.StatusOK // without parsing what may be megabytes
	}
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
