package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// readers answer with what they were asked.
type readers struct{}

func told(reader string, asked any) (store.RawJSON, error) {
	return json.Marshal(map[string]any{"reader": reader, "asked": asked})
}

func (readers) QueueDetail(_ context.Context, _ uuid.UUID, queue string) (store.RawJSON, error) {
	return told("detail", queue)
}
func (readers) QueueDepth(_ context.Context, _ uuid.UUID, queue, group string) (store.RawJSON, error) {
	if queue == "unknown" {
		return nil, nil
	}
	return told("depth", queue+"/"+group)
}
func (readers) Overview(context.Context, uuid.UUID) (store.RawJSON, error) {
	return told("overview", nil)
}
func (readers) Namespaces(context.Context, uuid.UUID) (store.RawJSON, error) {
	return told("namespaces", nil)
}
func (readers) Tasks(context.Context, uuid.UUID) (store.RawJSON, error) { return told("tasks", nil) }
func (readers) PartitionsChanged(_ context.Context, _ uuid.UUID, entries []store.ChangedEntry, floor time.Duration) (store.RawJSON, error) {
	return told("changed in "+floor.String(), entries)
}
func (readers) StatusQueues(_ context.Context, f store.StatusFilter) (store.RawJSON, error) {
	f.Tenant = uuid.Nil
	return told("queues", f)
}
func (readers) RefreshStatsNow(context.Context) (store.RawJSON, error) { return told("refresh", nil) }
func (readers) PostgresStats(context.Context) (store.RawJSON, error)   { return told("postgres", nil) }
func (readers) DLQSignatures(_ context.Context, f store.SignatureFilter) (store.RawJSON, error) {
	f.Tenant = uuid.Nil
	return told("signatures", f)
}
func (readers) PartitionLiveness(_ context.Context, f store.LivenessFilter) (store.RawJSON, error) {
	f.Tenant = uuid.Nil
	return told("liveness", f)
}

func series(reader string) func(context.Context, store.TimeseriesFilter) (store.RawJSON, error) {
	return func(_ context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
		f.Tenant = uuid.Nil
		return told(reader, f)
	}
}

func (readers) Status(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("status")(ctx, f)
}
func (readers) Analytics(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("volume")(ctx, f)
}
func (readers) QueueLag(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("lag")(ctx, f)
}
func (readers) QueueOps(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("ops")(ctx, f)
}
func (readers) QueueParkedReplicas(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("parked")(ctx, f)
}
func (readers) RetentionTimeseries(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("retention")(ctx, f)
}
func (readers) SystemMetrics(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("system")(ctx, f)
}
func (readers) WorkerMetrics(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("worker")(ctx, f)
}
func (readers) Workload(ctx context.Context, f store.TimeseriesFilter) (store.RawJSON, error) {
	return series("workload")(ctx, f)
}

const nobody = `"_tenant":"00000000-0000-0000-0000-000000000000"`

func setupReaders(t *testing.T) *bundle {
	t.Helper()
	return setupWith(t, func(d *httpapi.Deps) { d.Analytics = readers{} })
}

func TestReadersAreAskedWhatTheQuerySays(t *testing.T) {
	t.Parallel()
	b := setupReaders(t)
	const base = "/api/v1/"
	asked := func(reader, filter string) string { return `{"asked":` + filter + `,"reader":"` + reader + `"}` }
	for path, answer := range map[string]string{
		"status": asked("status", `{`+nobody+`}`),
		"analytics/queue-lag?queue=q&from=2026-05-01T10:00:00Z&to=2026-05-01&to=x": `{"error":"from must not be after to"}`,
		"analytics/queue-lag?queue=q&from=2026-05-01T10:00:00%2B02:00&to=2026-05-01T09:00": asked("lag",
			`{`+nobody+`,"queue":"q","from":"2026-05-01T08:00:00Z","to":"2026-05-01T09:00:00Z"}`),
		"analytics/queue-ops?queue=&whatever=1":                          asked("ops", `{`+nobody+`}`),
		"analytics/queue-parked-replicas?queue=a%2Fb":                    asked("parked", `{`+nobody+`,"queue":"a/b"}`),
		"analytics/retention?groupBy=task":                               asked("retention", `{`+nobody+`,"groupBy":"task"}`),
		"analytics/system-metrics?hostname=h&workerId=0":                 asked("system", `{`+nobody+`,"hostname":"h","workerId":0}`),
		"analytics/worker-metrics?namespace=n&task=t":                    asked("worker", `{`+nobody+`,"namespace":"n","task":"t"}`),
		"analytics/workload?groupBy=queue":                               asked("workload", `{`+nobody+`,"groupBy":"queue"}`),
		"analytics/postgres-stats":                                       asked("postgres", `null`),
		"analytics/dlq-signatures?queue=q":                               asked("signatures", `{`+nobody+`,"queue":"q","limit":200}`),
		"analytics/dlq-signatures?queue=q&limit=1001":                    asked("signatures", `{`+nobody+`,"queue":"q","limit":1000}`),
		"analytics/dlq-signatures?queue=q&limit=-5":                      asked("signatures", `{`+nobody+`,"queue":"q","limit":1}`),
		"analytics/partition-liveness":                                   asked("liveness", `{`+nobody+`,"limit":20}`),
		"analytics/partition-liveness?namespace=&limit=201":              asked("liveness", `{`+nobody+`,"namespace":"","limit":200}`),
		"status/analytics?interval=day&queue=q":                          asked("volume", `{`+nobody+`,"queue":"q","interval":"day"}`),
		"status/analytics?interval=fortnight":                            asked("volume", `{`+nobody+`}`),
		"status/queues/a%2Fb?includePartitions=true":                     asked("detail", `"a/b"`),
		"resources/queues/q/depth?group=g":                               asked("depth", `"q/g"`),
		"resources/overview":                                             asked("overview", `null`),
		"resources/namespaces":                                           asked("namespaces", `null`),
		"resources/tasks":                                                asked("tasks", `null`),
		"analytics/retention?groupBy=Task":                               `{"error":"bad groupBy"}`,
		"analytics/workload?groupBy=x":                                   `{"error":"bad groupBy"}`,
		"analytics/dlq-signatures":                                       `{"error":"queue required"}`,
		"analytics/dlq-signatures?queue=q&limit=many":                    `{"error":"limit must be a whole number from -2147483648 to 2147483647"}`,
		"analytics/queue-ops?from=yesterday":                             `{"error":"from must be an RFC 3339 instant"}`,
		"analytics/worker-metrics?workerId=-1":                           `{"error":"workerId must be a whole number from 0 to 2147483647"}`,
		"analytics/queue-ops?from=2016-01-01&to=2026-01-01":              `{"error":"from must be at most 2500 days before the end of the window"}`,
		"status/analytics?interval=minute&from=2026-01-01&to=2026-01-08": `{"error":"from must be at most 6 days before the end of the window"}`,
		"status/queues?limit=1001":                                       `{"error":"limit must be a whole number from 1 to 1000"}`,
		"resources/queues/unknown/depth":                                 `{"error":"Queue not found"}`,
		"analytics/queue-ops?queue=" + strings.Repeat("x", 256):          `{"error":"queue: longer than 255 characters"}`,
	} {
		status := http.StatusOK
		switch {
		case strings.Contains(answer, "not found"):
			status = http.StatusNotFound
		case strings.HasPrefix(answer, `{"error"`):
			status = http.StatusBadRequest
		}
		b.want(http.MethodGet, base+path, "", status, answer)
	}
	b.want(http.MethodPost, base+"stats/refresh", "", http.StatusOK, asked("refresh", `null`))
	_, body := b.call(http.MethodGet, base+"status/queues?queue=q&namespace=n&task=t&offset=3&from=2026-01-01", "")
	require.JSONEq(t, asked("queues", `{"Tenant":"00000000-0000-0000-0000-000000000000","Queue":"q","Namespace":"n","Task":"t","Limit":100,"Offset":3}`), body)
}

func TestChangedPartitionsAreAskedFor(t *testing.T) {
	t.Parallel()
	b := setupReaders(t)
	b.want(http.MethodPost, "/api/v1/partitions/changed", `{"entries":[{"queue":"q","since":"2026-05-01T10:00:00Z","limit":5}]}`, http.StatusOK,
		`{"asked":[{"queue":"q","since":"2026-05-01T10:00:00Z","limit":5}],"reader":"changed in 30s"}`)
	b.want(http.MethodPost, "/api/v1/partitions/changed", `{"entries":[{"queue":""}]}`, http.StatusBadRequest, `{"error":"bad body: entries[0].queue: a name is needed"}`)
}
