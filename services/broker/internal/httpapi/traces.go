package httpapi

import (
	"context"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// Traces is the part of the store behind the routes of traces.
type Traces interface {
	RecordTrace(ctx context.Context, t store.Trace) (store.RawJSON, error)
	MessageTraces(ctx context.Context, tenant, partition uuid.UUID, txn string, p store.PageArgs) (store.RawJSON, error)
	TracesByName(ctx context.Context, tenant uuid.UUID, name string, p store.PageArgs) (store.RawJSON, error)
	TraceNames(ctx context.Context, tenant uuid.UUID, p store.PageArgs) (store.RawJSON, error)
}

const (
	// traceWorker is the worker that dashboards of the original system expect.
	traceWorker = "seg-rust"

	tracesLimitDefault     = 100
	traceNamesLimitDefault = 50
)

// kindTraceName is what errors call the name of a trace.
const kindTraceName = "traceName"

func (a *API) addTraceRoutes() {
	a.route(http.MethodPost, "/api/v1/traces", ReadWrite, a.recordTrace)
	a.read("/api/v1/traces/names", ReadOnly, a.traceNames)
	a.read("/api/v1/traces/by-name/:traceName", ReadOnly, a.tracesByName)
	a.read("/api/v1/traces/:partitionId/:transactionId", ReadOnly, a.messageTraces)
}

// recordTrace handles POST /api/v1/traces.
func (a *API) recordTrace(c echo.Context) error {
	return a.withBody(c, func(body []byte) error {
		t, err := wire.ParseTrace(body)
		if err != nil {
			return err
		}
		doc, err := a.ask(c.Request().Context(), "trace", func(ctx context.Context) (store.RawJSON, error) {
			return a.deps.Traces.RecordTrace(ctx, store.Trace{
				Tenant: a.tenant(c), PartitionID: t.PartitionID, TransactionID: t.TransactionID, ConsumerGroup: t.ConsumerGroup,
				EventType: t.EventType, Data: t.Data, WorkerID: traceWorker, Names: t.Names,
			})
		})
		if err != nil {
			return err
		}
		status := passThroughStatus(doc)
		if status == http.StatusOK {
			status = http.StatusCreated
		}
		return respond(c, status, doc)
	})
}

// messageTraces handles GET /api/v1/traces/:partitionId/:transactionId.
func (a *API) messageTraces(c echo.Context) error {
	at, err := addressOf(c)
	if err != nil {
		return err
	}
	p := parameters(c)
	page := store.PageArgs{Limit: p.number("limit", pageLimitMax, 1, pageLimitMax), After: p.after(0)}
	if p.err != nil {
		return p.err
	}
	if !at.exists {
		return respond(c, http.StatusOK, []byte(`{"traces":[]}`))
	}
	return a.procedure(c, "trace lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Traces.MessageTraces(ctx, a.tenant(c), at.partition, at.txn, page)
	})
}

// tracesByName handles GET /api/v1/traces/by-name/:traceName.
func (a *API) tracesByName(c echo.Context) error {
	traceName, err := unescape(c.Param("traceName"), kindTraceName)
	if err != nil {
		return err
	}
	if fault := textFault(traceName); fault != "" {
		return badRequest(kindTraceName + ": " + fault)
	}
	page, err := tracePage(c, tracesLimitDefault)
	if err != nil {
		return err
	}
	return a.procedure(c, "trace lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Traces.TracesByName(ctx, a.tenant(c), traceName, page)
	})
}

// traceNames handles GET /api/v1/traces/names.
func (a *API) traceNames(c echo.Context) error {
	page, err := tracePage(c, traceNamesLimitDefault)
	if err != nil {
		return err
	}
	return a.procedure(c, "trace lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Traces.TraceNames(ctx, a.tenant(c), page)
	})
}

func tracePage(c echo.Context, limit int) (store.PageArgs, error) {
	p := parameters(c)
	var page store.PageArgs
	page.Limit, page.Offset = p.page(limit)
	page.After = p.after(page.Offset)
	return page, p.err
}
