package httpapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/push"
)

// push handles POST /api/v1/push.
func (a *API) push(c echo.Context) error {
	return a.withItems(c, intake, func(b *body) error {
		items, err := wire.ParsePush(b.bytes())
		if err != nil {
			return err
		}
		b.haveItems(len(items))
		describePush(c.Request().Context(), items)
		results, err := a.deps.Push.Push(c.Request().Context(), a.tenant(c), a.producer(c), items)
		status := http.StatusCreated
		switch {
		case errors.Is(err, push.ErrHeld):
			status = http.StatusInternalServerError // there is nowhere else to put them
		case err != nil:
			return err
		default:
			a.metrics.messages.Add(int64(len(items)))
		}
		return a.respondIn(c, status, wire.PushResultsSize(results), func(dst []byte) []byte {
			return wire.AppendPushResults(dst, results)
		})
	})
}

// popping is a route for pops: with nothing, whatever is asked for, under
// maintenance.
func (a *API) popping(h echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if a.deps.Modes.PopMaintenance() {
			return nothing(c)
		}
		return h(c)
	}
}

// popQueue handles GET /api/v1/pop/queue/:queue.
func (a *API) popQueue(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	return a.pop(c, pop.Request{Route: pop.Wildcard, Queue: queue})
}

// popPartition handles GET /api/v1/pop/queue/:queue/partition/*. An empty
// partition is as good as none.
func (a *API) popPartition(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	partition, err := name(c, "*", wire.KindPartition)
	if err != nil {
		return err
	}
	if partition == "" {
		return a.pop(c, pop.Request{Route: pop.Wildcard, Queue: queue})
	}
	return a.pop(c, pop.Request{Route: pop.Specific, Queue: queue, Partition: partition})
}

// noLabels is what a discovery pop without labels is told.
const noLabels = `{"success":false,"error":"namespace or task is required","messages":[]}`

// popDiscover handles GET /api/v1/pop.
func (a *API) popDiscover(c echo.Context) error {
	q, err := query(c)
	if err != nil {
		return err
	}
	if q.Get("namespace") == "" && q.Get("task") == "" {
		return respond(c, http.StatusBadRequest, []byte(noLabels))
	}
	return a.pop(c, pop.Request{Route: pop.Discover})
}

func (a *API) pop(c echo.Context, req pop.Request) error {
	q, err := query(c)
	if err != nil {
		return err
	}
	if req.Query, err = wire.ParsePopQuery(q, a.cfg.PopDefaults); err != nil {
		return err
	}
	req.Tenant = a.tenant(c)
	describePop(c.Request().Context(), &req)
	body, err := a.answerPop(c, req)
	a.dismiss(c.Response()) // again: it may have waited
	switch {
	case err != nil:
		return err
	case body == nil:
		return nothing(c)
	}
	defer a.deps.Replies.Put(body)
	return respond(c, http.StatusOK, body)
}

// answerPop pops, and parks the connection of a pop that waits for long.
func (a *API) answerPop(c echo.Context, req pop.Request) ([]byte, error) {
	began, ctx := time.Now(), c.Request().Context()
	popper, ok := a.deps.Pop.(Parker)
	if !ok || !a.lot.takes(c.Request()) {
		return a.deps.Pop.Pop(ctx, req)
	}
	body, parked, err := popper.Begin(ctx, req)
	if parked == nil || parked.WaitFor(ctx, parkAfter) {
		if parked != nil {
			return parked.Wait(ctx)
		}
		return body, err
	}
	if a.lot.park(c, parked, began) {
		return nil, errParked
	}
	return parked.Wait(ctx)
}

// ack handles POST /api/v1/ack.
func (a *API) ack(c echo.Context) error { return a.settle(c, wire.ParseAck) }

// ackBatch handles POST /api/v1/ack/batch.
func (a *API) ackBatch(c echo.Context) error { return a.settle(c, wire.ParseAckBatch) }

func (a *API) settle(c echo.Context, parse func([]byte) (wire.AckRequest, error)) error {
	return a.withItems(c, upkeep, func(b *body) error {
		req, err := parse(b.bytes())
		if err != nil {
			return err
		}
		b.haveItems(len(req.Items))
		describeAck(c.Request().Context(), &req)
		results, err := a.deps.Ack.Ack(c.Request().Context(), a.tenant(c), req)
		if err != nil {
			return err
		}
		return a.respondIn(c, http.StatusOK, wire.AckResultsSize(results), func(dst []byte) []byte {
			return wire.AppendAckResults(dst, results)
		})
	})
}

// extend handles POST /api/v1/lease/:leaseId/extend. Nothing in the body can
// make it fail, short of its size.
func (a *API) extend(c echo.Context) error {
	lease, err := unescape(c.Param("leaseId"), wire.KindLease)
	if err != nil {
		return err
	}
	return a.withBody(c, func(body []byte) error {
		seconds := wire.ParseExtend(body)
		result := wire.ExtendResult{LeaseID: lease}
		// What cannot be a lease id is an unknown lease, not a bad request.
		if wire.CheckName(wire.KindLease, lease) == nil {
			result, err = a.deps.Ack.Extend(c.Request().Context(), a.tenant(c), lease, seconds)
			if err != nil {
				return &callError{"renew", err}
			}
		}
		return respond(c, http.StatusOK, wire.AppendExtendResult(nil, result))
	})
}

// transaction handles POST /api/v1/transaction. Its own failures have the
// envelope of its answers.
func (a *API) transaction(c echo.Context) error {
	return a.withItems(c, intake, func(b *body) error {
		req, err := wire.ParseTransaction(b.bytes())
		if err != nil {
			return refuseTransaction(c, err)
		}
		b.haveItems(len(req.Ops))
		result, err := a.deps.Transaction.Run(c.Request().Context(), a.tenant(c), a.producer(c), req)
		if err != nil {
			return refuseTransaction(c, err)
		}
		return respond(c, http.StatusOK, wire.AppendTxResponse(nil, result))
	})
}

// refuseTransaction answers a request that cannot be served, or whose riders may not
// be carried out now. Any other error is answered as on every route.
func refuseTransaction(c echo.Context, err error) error {
	var malformed *wire.Error
	var refusal *wire.Refusal
	var status int
	var resp wire.TxResponse
	switch {
	case errors.As(err, &malformed):
		status, resp.Reason, resp.Error = malformed.Status, wire.ReasonBadRequest, malformed.Text
	case errors.As(err, &refusal):
		status, resp.Reason, resp.Error, resp.Detail = refusal.Status, refusal.Code, refusal.Code, refusal.Detail
		setRetryAfter(c, refusal)
	default:
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	resp.TransactionID = id.String()
	return respond(c, status, wire.AppendTxResponse(nil, resp))
}
