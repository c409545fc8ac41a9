package httpapi

import (
	"context"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// Analytics are the readers of figures: of the state now, and of what was written over
// time.
type Analytics interface {
	QueueDetail(ctx context.Context, tenant uuid.UUID, queue string) (store.RawJSON, error)
	// QueueDepth is nil for an unknown queue.
	QueueDepth(ctx context.Context, tenant uuid.UUID, queue, group string) (store.RawJSON, error)
	Overview(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error)
	Namespaces(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error)
	Tasks(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error)
	PartitionsChanged(ctx context.Context, tenant uuid.UUID, entries []store.ChangedEntry, floor time.Duration) (store.RawJSON, error)

	Status(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	StatusQueues(ctx context.Context, f store.StatusFilter) (store.RawJSON, error)
	Analytics(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	RefreshStatsNow(ctx context.Context) (store.RawJSON, error)

	QueueLag(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	QueueOps(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	QueueParkedReplicas(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	RetentionTimeseries(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	SystemMetrics(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	WorkerMetrics(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	Workload(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error)
	DLQSignatures(ctx context.Context, f store.SignatureFilter) (store.RawJSON, error)
	PartitionLiveness(ctx context.Context, f store.LivenessFilter) (store.RawJSON, error)
	PostgresStats(ctx context.Context) (store.RawJSON, error)
}

func (a *API) addAnalyticsRoutes() {
	a.read("/api/v1/status", ReadOnly, a.series("status", Analytics.Status, byQueue, byLabels))
	a.read("/api/v1/status/queues", ReadOnly, a.statusQueues)
	a.read("/api/v1/status/queues/:queue", ReadOnly, a.statusQueue)
	a.read("/api/v1/status/analytics", ReadOnly, a.messageVolume)
	a.route(http.MethodPost, "/api/v1/stats/refresh", Admin, a.refreshStats)
	a.read("/api/v1/analytics/queue-lag", ReadOnly, a.series("queue lag", Analytics.QueueLag, byQueue))
	a.read("/api/v1/analytics/queue-ops", ReadOnly, a.series("queue ops", Analytics.QueueOps, byQueue))
	a.read("/api/v1/analytics/queue-parked-replicas", ReadOnly, a.series("parked replicas", Analytics.QueueParkedReplicas, byQueue))
	a.read("/api/v1/analytics/retention", ReadOnly, a.series("retention analytics", Analytics.RetentionTimeseries, byQueue, grouped))
	a.read("/api/v1/analytics/system-metrics", ReadOnly, a.series("system metrics", Analytics.SystemMetrics, byProcess))
	a.read("/api/v1/analytics/worker-metrics", ReadOnly, a.series("worker metrics", Analytics.WorkerMetrics, byQueue, byLabels, byProcess))
	a.read("/api/v1/analytics/workload", ReadOnly, a.series("workload", Analytics.Workload, byQueue, byLabels, grouped))
	a.read("/api/v1/analytics/dlq-signatures", ReadOnly, a.dlqSignatures)
	a.read("/api/v1/analytics/partition-liveness", ReadOnly, a.partitionLiveness)
	a.read("/api/v1/analytics/postgres-stats", ReadOnly, a.postgresStats)
}

// Bounds of a series. Points of the longest windows are six hours wide.
const (
	seriesPointsMax = 10_000
	seriesWindowMax = seriesPointsMax * 6 * time.Hour
)

// series is the handler of a reader that takes a window and what the filters read. It
// looks at no other parameter.
func (a *API) series(
	verb string, read func(r Analytics, ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error),
	filters ...func(p *params, f *store.TimeseriesFilter),
) echo.HandlerFunc {
	return func(c echo.Context) error {
		p := parameters(c)
		var f store.TimeseriesFilter
		f.From, f.To = p.window(seriesWindowMax)
		for _, filter := range filters {
			filter(p, &f)
		}
		if p.err != nil {
			return p.err
		}
		f.Tenant = a.tenant(c)
		return a.procedure(c, verb, func(ctx context.Context) (store.RawJSON, error) { return read(a.deps.Analytics, ctx, f) })
	}
}

func byQueue(p *params, f *store.TimeseriesFilter) { f.Queue = p.name("queue", wire.KindQueue) }

func byLabels(p *params, f *store.TimeseriesFilter) {
	f.Namespace, f.Task = p.name("namespace", wire.KindNamespace), p.name("task", wire.KindTask)
}

func byProcess(p *params, f *store.TimeseriesFilter) {
	f.Hostname = p.name("hostname", "hostname")
	if p.text("workerId") != "" {
		worker := p.number("workerId", 0, 0, math.MaxInt32)
		f.Worker = &worker
	}
}

func grouped(p *params, f *store.TimeseriesFilter) {
	f.GroupBy = p.text("groupBy")
	if !slices.Contains([]string{"", "namespace", "task", "queue"}, f.GroupBy) && p.err == nil {
		p.err = badRequest("bad groupBy")
	}
}

// window is the part of the time from from to to, either of which may be absent.
func (p *params) window(most time.Duration) (from, to time.Time) {
	from, to = p.instant("from"), p.instant("to")
	end := to
	if end.IsZero() {
		end = time.Now()
	}
	switch {
	case from.IsZero():
	case from.After(end) && !to.IsZero():
		p.reject("from", "must not be after to")
	case end.Sub(from) > most:
		p.reject("from", "must be at most %d days before the end of the window", most/(24*time.Hour))
	}
	return from, to
}

// statusQueues handles GET /api/v1/status/queues. Its figures are the last ones: from and
// to, which clients send, choose nothing.
func (a *API) statusQueues(c echo.Context) error {
	p := parameters(c)
	f := store.StatusFilter{
		Queue: p.name("queue", wire.KindQueue), Namespace: p.name("namespace", wire.KindNamespace), Task: p.name("task", wire.KindTask),
	}
	f.Limit, f.Offset = p.page(statusQueuesDefault)
	p.window(math.MaxInt64)
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	return a.procedure(c, "queue status", func(ctx context.Context) (store.RawJSON, error) { return a.deps.Analytics.StatusQueues(ctx, f) })
}

const statusQueuesDefault = 100

// statusQueue handles GET /api/v1/status/queues/:queue. Partitions are always there.
func (a *API) statusQueue(c echo.Context) error {
	queue, err := name(c, "queue", wire.KindQueue)
	if err != nil {
		return err
	}
	return a.procedure(c, "queue status", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Analytics.QueueDetail(ctx, a.tenant(c), queue)
	})
}

// messageVolume handles GET /api/v1/status/analytics. An interval that is none is an
// hour.
func (a *API) messageVolume(c echo.Context) error {
	p := parameters(c)
	width := time.Hour
	f := store.TimeseriesFilter{
		Queue: p.name("queue", wire.KindQueue), Namespace: p.name("namespace", wire.KindNamespace), Task: p.name("task", wire.KindTask),
		Interval: p.text("interval"),
	}
	switch f.Interval {
	case "minute":
		width = time.Minute
	case "day":
		width = 24 * time.Hour
	default:
		f.Interval = ""
	}
	f.From, f.To = p.window(seriesPointsMax * width)
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	return a.procedure(c, "analytics", func(ctx context.Context) (store.RawJSON, error) { return a.deps.Analytics.Analytics(ctx, f) })
}

// refreshStats handles POST /api/v1/stats/refresh. Of a body nothing is read.
func (a *API) refreshStats(c echo.Context) error {
	return a.procedure(c, "stats refresh", a.deps.Analytics.RefreshStatsNow)
}

// Bounds of what the readers of single rows look at. A limit is clamped to them.
const (
	signaturesDefault = 200
	signaturesMax     = 1000
	livenessDefault   = 20
	livenessMax       = 200
)

// clamped is a whole number, or the nearest one that is allowed.
func (p *params) clamped(param string, fallback, lowest, highest int) int {
	return min(max(p.number(param, fallback, math.MinInt32, math.MaxInt32), lowest), highest)
}

// dlqSignatures handles GET /api/v1/analytics/dlq-signatures.
func (a *API) dlqSignatures(c echo.Context) error {
	p := parameters(c)
	f := store.SignatureFilter{Queue: p.name("queue", wire.KindQueue), Limit: p.clamped("limit", signaturesDefault, 1, signaturesMax)}
	if f.Queue == "" && p.err == nil {
		p.err = badRequest("queue required")
	}
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	return a.procedure(c, "dead letter signatures", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Analytics.DLQSignatures(ctx, f)
	})
}

// partitionLiveness handles GET /api/v1/analytics/partition-liveness. An empty label is
// one like any other.
func (a *API) partitionLiveness(c echo.Context) error {
	p := parameters(c)
	label := func(param, kind string) *string {
		value := p.name(param, kind)
		if !p.values.Has(param) {
			return nil
		}
		return &value
	}
	f := store.LivenessFilter{
		Queue: label("queue", wire.KindQueue), Namespace: label("namespace", wire.KindNamespace), Task: label("task", wire.KindTask),
		Limit: p.clamped("limit", livenessDefault, 1, livenessMax),
	}
	if p.err != nil {
		return p.err
	}
	f.Tenant = a.tenant(c)
	return a.procedure(c, "partition liveness", func(ctx context.Context) (store.RawJSON, error) {
		return a.deps.Analytics.PartitionLiveness(ctx, f)
	})
}

// postgresStats handles GET /api/v1/analytics/postgres-stats.
func (a *API) postgresStats(c echo.Context) error {
	return a.procedure(c, "postgres stats", a.deps.Analytics.PostgresStats)
}
