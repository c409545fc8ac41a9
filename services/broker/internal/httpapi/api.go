package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// outageLogInterval thins out the log of an outage, in which every request
// fails in the same way.
const outageLogInterval = time.Second

// API is the HTTP surface. It is safe for concurrent use.
type API struct {
	cfg     Config
	deps    Deps
	echo    *echo.Echo
	bodies  *bodies
	lot     *lot
	office  *office
	metrics *metrics
	routes  []Route
	outage  rate.Sometimes
	began   time.Time
	leaving atomic.Bool // clients are to go elsewhere
}

// New builds the surface. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*API, error) {
	if deps.QueueChanged == nil {
		deps.QueueChanged = func(uuid.UUID, string, bool) {}
	}
	if deps.FlagsChanged == nil {
		deps.FlagsChanged = func() {}
	}
	a := &API{
		cfg: cfg, deps: deps, echo: echo.New(), bodies: newBodies(cfg), began: time.Now(),
		outage: rate.Sometimes{First: 1, Interval: outageLogInterval}, office: newOffice(deps.Admit),
	}
	a.lot = newLot(a)
	var err error
	if a.metrics, err = newMetrics(deps.Meter, a.bodies); err != nil {
		return nil, err
	}
	if deps.Tracers != nil {
		a.echo.Use(a.traced)
	}
	a.echo.Use(a.observe)
	a.addRoutes()
	return a, nil
}

func (a *API) addRoutes() {
	a.route(http.MethodPost, "/api/v1/push", WriteOnly, a.push)
	// No HEAD on pops: it would lease messages that nobody receives.
	a.route(http.MethodGet, "/api/v1/pop", ReadWrite, a.popping(a.popDiscover))
	a.route(http.MethodGet, "/api/v1/pop/queue/:queue", ReadWrite, a.popping(a.popQueue))
	// A client that does not escape the slashes of a partition sends more segments.
	a.route(http.MethodGet, "/api/v1/pop/queue/:queue/partition/*", ReadWrite, a.popping(a.popPartition))
	a.route(http.MethodPost, "/api/v1/ack", ReadWrite, a.ack)
	a.route(http.MethodPost, "/api/v1/ack/batch", ReadWrite, a.ackBatch)
	a.route(http.MethodPost, "/api/v1/lease/:leaseId/extend", ReadWrite, a.extend)
	a.route(http.MethodPost, "/api/v1/transaction", ReadWrite, a.transaction)

	a.route(http.MethodPost, "/api/v1/configure", ReadWrite, a.configure)
	a.addResourceRoutes()
	a.addAnalyticsRoutes()
	a.route(http.MethodDelete, "/api/v1/resources/queues/:queue", Admin, a.deleteQueue)
	a.addBrowseRoutes()
	a.addDeadLetterRoutes()
	a.addTraceRoutes()
	a.addGroupRoutes()
	a.addTimerRoutes()
	a.addKVRoutes()

	a.route(http.MethodPost, "/internal/api/notify", Admin, a.notify)
	a.read("/internal/api/shared-state/stats", Admin, a.meshStats)
	a.read("/internal/api/inter-instance/stats", Admin, a.meshStats)
	a.addModeRoutes()
	a.addAuthRoutes()

	a.read("/health", Public, a.health)
	a.read("/status", ReadOnly, a.status)
	a.read("/metrics", Public, a.counters)
	a.read("/metrics/prometheus", Public, a.prometheus)
	a.read("/openapi.yaml", Public, a.openapi)
}

func (a *API) addKVRoutes() {
	a.route(http.MethodPost, "/api/v1/kv", ReadWrite, a.kvBatch)
	// No literal segment may ever stand where a key can: it would hide that key.
	a.read("/api/v1/kv/:ns/*", ReadOnly, a.kvGet)
	a.route(http.MethodPut, "/api/v1/kv/:ns/*", ReadWrite, a.kvPut)
	a.route(http.MethodDelete, "/api/v1/kv/:ns/*", ReadWrite, a.kvDelete)
	a.read("/api/v1/resources/kv/namespaces", ReadOnly, a.kvNamespaces)
	a.route(http.MethodPost, "/api/v1/resources/kv/list", ReadOnly, a.kvList)
	a.read("/api/v1/system/kv-timers", Admin, a.getSwitches)
	a.route(http.MethodPost, "/api/v1/system/kv-timers", Admin, a.setSwitches)
}

// ServeHTTP routes on the path as it was sent: an escaped slash inside a name
// must not separate segments. Names are decoded by the handlers, once.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.URL.RawPath = r.URL.EscapedPath()
	a.dismiss(w)
	a.echo.ServeHTTP(w, r)
}

// dismiss has an answer end its connection when clients are to leave.
func (a *API) dismiss(w http.ResponseWriter) {
	if a.leaving.Load() {
		w.Header().Set(echo.HeaderConnection, "close")
	}
}

// tenant is the tenant of a request. There is one while tenancy is not built.
func (a *API) tenant(echo.Context) uuid.UUID { return store.DefaultTenant() }

// producer is the authenticated sender. There is none while authentication is
// not built.
func (a *API) producer(echo.Context) string { return "" }

// name decodes and checks a name in the path.
func name(c echo.Context, param, kind string) (string, error) {
	decoded, err := unescape(c.Param(param), kind)
	if err != nil {
		return "", err
	}
	if err := wire.CheckName(kind, decoded); err != nil {
		return "", err
	}
	return decoded, nil
}

func unescape(raw, kind string) (string, error) {
	decoded, err := url.PathUnescape(raw)
	if err != nil {
		return "", badRequest(fmt.Sprintf("bad %s in the path: %v", kind, err))
	}
	return decoded, nil
}

// query parses the query string; url.Values of the standard library would drop
// what does not parse.
func query(c echo.Context) (url.Values, error) {
	q, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, badRequest("bad query: " + strings.TrimPrefix(err.Error(), "invalid "))
	}
	return q, nil
}

func badRequest(text string) error {
	return &wire.Error{Status: http.StatusBadRequest, Text: text}
}

// withBody reads the request body for the duration of use.
func (a *API) withBody(c echo.Context, use func(body []byte) error) error {
	b, err := a.bodies.read(c.Response(), c.Request(), upkeep)
	if err != nil {
		return err
	}
	defer b.release()
	return use(b.bytes())
}

// withItems is withBody for bodies that hold items, of which there may be very
// many. use says how many there are as soon as it knows.
func (a *API) withItems(c echo.Context, l line, use func(b *body) error) error {
	b, err := a.bodies.read(c.Response(), c.Request(), l)
	if err != nil {
		return err
	}
	defer b.release()
	if err := b.expectItems(c.Request().Context()); err != nil {
		return err
	}
	return use(b)
}
