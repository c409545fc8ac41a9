package httpapi

import (
	"cmp"
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

func (a *API) addResourceRoutes() {
	a.read("/api/v1/resources/queues", ReadOnly, a.listQueues)
	a.read("/api/v1/resources/queues/:queue", ReadOnly, a.getQueue)
	a.read("/api/v1/resources/queues/:queue/depth", ReadOnly, a.queueDepth)
	a.read("/api/v1/resources/overview", ReadOnly, a.overview)
	a.read("/api/v1/resources/namespaces", ReadOnly, a.namespaces)
	a.read("/api/v1/resources/tasks", ReadOnly, a.tasks)
	a.route(http.MethodPost, "/api/v1/partitions/changed", ReadOnly, a.partitionsChanged)
}

// noQueue is the answer of a procedure that does not know a queue.
const noQueue = `{"error":"Queue not found"}`

// listQueues handles GET /api/v1/resources/queues. The whole list is answered, whatever
// clients send beside stats.
func (a *API) listQueues(c echo.Context) error {
	p := parameters(c)
	if p.err != nil {
		return p.err
	}
	cached := p.text("stats") == "cached"
	return a.procedure(c, "queue list", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Store.ListQueues(ctx, a.tenant(c), cached)
	})
}

// getQueue handles GET /api/v1/resources/queues/:queue.
func (a *API) getQueue(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	return a.procedure(c, "queue lookup", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Store.GetQueue(ctx, a.tenant(c), queue)
	})
}

// queueDepth handles GET /api/v1/resources/queues/:queue/depth.
func (a *API) queueDepth(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	p := parameters(c)
	group := p.name("group", "group")
	if p.err != nil {
		return p.err
	}
	return a.procedure(c, "queue depth", func(ctx context.Context) (store.RawJSON, error) {
		doc, err := a.deps.Analytics.QueueDepth(ctx, a.tenant(c), queue, group)
		if doc == nil && err == nil {
			return store.RawJSON(noQueue), nil
		}
		return doc, err
	})
}

// overview handles GET /api/v1/resources/overview.
func (a *API) overview(c echo.Context) error {
	return a.procedure(c, "overview", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Analytics.Overview(ctx, a.tenant(c))
	})
}

// namespaces handles GET /api/v1/resources/namespaces.
func (a *API) namespaces(c echo.Context) error {
	return a.procedure(c, "namespace list", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Analytics.Namespaces(ctx, a.tenant(c))
	})
}

// tasks handles GET /api/v1/resources/tasks.
func (a *API) tasks(c echo.Context) error {
	return a.procedure(c, "task list", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Analytics.Tasks(ctx, a.tenant(c))
	})
}

// partitionsChanged handles POST /api/v1/partitions/changed.
func (a *API) partitionsChanged(c echo.Context) error {
	return a.withBody(c, func(body []byte) error {
		asked, err := wire.ParseChanged(body)
		if err != nil {
			return err
		}
		entries := make([]store.ChangedEntry, len(asked))
		for i, e := range asked {
			entries[i] = store.ChangedEntry(e)
		}
		return a.procedure(c, "partition list", func(ctx context.Context) (store.RawJSON, error) {
			return a.deps.Analytics.PartitionsChanged(ctx, a.tenant(c), entries, cmp.Or(a.cfg.FetchSafeFloor, FetchSafeFloorDefault))
		})
	})
}
