package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/logging"
)

// engine is the label that clients and dashboards of the original system know.
const engine = "segments-rust"

const healthTimeout = 5 * time.Second

type healthBody struct {
	Status   string `json:"status"`
	Database string `json:"database"`
	Engine   string `json:"engine"`
	Version  string `json:"version"`
}

// health handles GET /health: a real round trip to the database.
func (a *API) health(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), healthTimeout)
	defer cancel()
	body, status := healthBody{"healthy", "connected", engine, a.cfg.Version}, http.StatusOK
	if err := a.deps.Database.Ping(ctx); err != nil {
		a.outage.Do(func() { a.deps.Log.WarnContext(ctx, "database is unreachable", logging.Err(err)) })
		body.Status, body.Database, status = "unhealthy", "disconnected", http.StatusServiceUnavailable
	}
	return respondValue(c, status, body)
}

// status handles GET /status: the process answers.
func (a *API) status(c echo.Context) error {
	return respondValue(c, http.StatusOK, struct {
		Status string `json:"status"`
		Engine string `json:"engine"`
	}{"ok", engine})
}

type total struct {
	Total int64 `json:"total"`
	Rate  int   `json:"rate"`
}

// countersBody has several members that are always zero; readers expect them.
type countersBody struct {
	Uptime   int64 `json:"uptime"`
	Requests total `json:"requests"`
	Messages total `json:"messages"`
	Database struct {
		PoolSize        int `json:"poolSize"`
		IdleConnections int `json:"idleConnections"`
		WaitingRequests int `json:"waitingRequests"`
	} `json:"database"`
	Memory struct {
		RSS          int64 `json:"rss"`
		HeapTotal    int   `json:"heapTotal"`
		HeapUsed     int   `json:"heapUsed"`
		External     int   `json:"external"`
		ArrayBuffers int   `json:"arrayBuffers"`
	} `json:"memory"`
	CPU struct {
		User   int `json:"user"`
		System int `json:"system"`
	} `json:"cpu"`
}

// counters handles GET /metrics.
func (a *API) counters(c echo.Context) error {
	var body countersBody
	body.Uptime = int64(time.Since(a.began).Seconds())
	body.Requests.Total = a.metrics.requests.Load()
	body.Messages.Total = a.metrics.messages.Load()
	stat := a.deps.Database.Stat()
	body.Database.PoolSize, body.Database.IdleConnections = stat.Size, stat.Idle
	body.Memory.RSS = collector.ResidentBytes()
	return respondValue(c, http.StatusOK, body)
}

// prometheus handles GET /metrics/prometheus.
func (a *API) prometheus(c echo.Context) error {
	expectWrite(c, 0)
	a.deps.Prometheus.ServeHTTP(c.Response(), c.Request())
	return nil
}

func respondValue(c echo.Context, status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return respond(c, status, body)
}
