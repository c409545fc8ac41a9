package e2e_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestAnalyticsOfAnInstallation does a known amount of work and reads it back from every
// route that tells what was done.
func TestAnalyticsOfAnInstallation(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "METRICS_FLUSH_MS=1000", "QUEEN_SERVER_ID=here")
	require.Equal(t, -1.0, shown(t, b, "/api/v1/resources/overview")["statsAge"], "nothing was reconciled yet")
	requireNothingYet(t, b)

	const q, idle = "orders.eu", "idle.eu"
	b.PushTogether(t, q, "p", 6)
	p := b.Pop(t, q, "batch=4&consumerGroup=g")
	require.Len(t, p.Messages, 4)
	b.AckOK(t, "g", p.Messages[0].Ack("completed"), p.Messages[1].Ack("completed"))
	b.AckOK(t, "g", p.Messages[2].Ack("dlq"))
	require.Len(t, b.Pop(t, q, "batch=1&consumerGroup=g").Messages, 1) // and is held under a lease
	b.Pop(t, "orders.other", "").RequireEmpty(t)
	waiting, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = b.TryPop(waiting, "/api/v1/pop/queue/"+idle+"?wait=true&timeout=60000")
	}()
	defer func() { cancel(); <-gone }()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.Len(c, b.Get(t, "/api/v1/analytics/queue-parked-replicas").Object(t)["series"], 1)
		assert.Equal(c, int64(6), countedOf(t, b.DB, q).PushMessages)
		assert.Equal(c, int64(5), countedOf(t, b.DB, q).PopMessages)
		assert.Equal(c, int64(3), countedOf(t, b.DB, q).AckSuccess)
		assert.Equal(c, int64(1), countedOf(t, b.DB, q).LanesCreated)
	}, 20*time.Second, 100*time.Millisecond)
	refreshStats(t, b)

	checkOverview(t, b)
	checkStatus(t, b, q)
	checkQueueSeries(t, b, q)
	checkParked(t, b, idle)
	checkProcesses(t, b, q)
	checkWorkload(t, b, q)
	checkSignatures(t, b, q)
	checkLiveness(t, b, q)
	checkVolume(t, b, q)
	checkPostgres(t, b)
	checkRefusals(t, b)
}

// requireNothingYet asks for series that have no points.
func requireNothingYet(t *testing.T, b *harness.Broker) {
	t.Helper()
	a := b.Get(t, "/api/v1/analytics/queue-lag")
	require.Equal(t, "[]", string(a.Body), "a bare array")
	require.Equal(t, []any{}, shown(t, b, "/api/v1/analytics/queue-ops")["series"])
	d := shown(t, b, "/api/v1/analytics/retention")
	require.Equal(t, []any{}, d["series"])
	require.Equal(t, object{"retentionMsgs": 0.0, "completedRetentionMsgs": 0.0, "evictionMsgs": 0.0, "totalMsgs": 0.0, "eventCount": 0.0}, d["totals"])
}

func checkOverview(t *testing.T, b *harness.Broker) {
	t.Helper()
	d := shown(t, b, "/api/v1/resources/overview")
	requireMillisecond(t, d["timestamp"])
	require.InDelta(t, 0, d["statsAge"], 60)
	require.Equal(t, []any{3.0, 1.0, 2.0, 2.0}, []any{d["queues"], d["partitions"], d["namespaces"], d["tasks"]})
	require.Equal(t, object{"total": 6.0, "pending": 3.0, "processing": 1.0, "completed": 3.0, "failed": 0.0, "deadLetter": 1.0}, d["messages"])
	lag := d["lag"].(object)
	require.Equal(t, object{"avg": 3.0, "median": 3.0, "min": 3.0, "max": 3.0}, lag["offset"], "of the one queue that is behind")
	requireKeys(t, lag["time"].(object), "avg", "median", "min", "max")
	require.Equal(t, object{"ingestedPerSecond": 0.02, "processedPerSecond": 0.01}, d["throughput"], "of five minutes")
}

func checkStatus(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	d := shown(t, b, "/api/v1/status")
	requireKeys(t, d, "timeRange", "bucketMinutes", "pointCount", "throughput", "queues", "messages", "leases", "deadLetterQueue", "workers", "errors", "statsAge")
	requireKeys(t, d["timeRange"].(object), "from", "to")
	require.Equal(t, 1.0, d["bucketMinutes"])
	points := d["throughput"].([]any)
	require.Len(t, points, int(d["pointCount"].(float64)))
	require.InDelta(t, 6, sumOf(points, "pushMessages"), 0)
	requireKeys(t, points[0].(object), append(workerPoint(), "cpuUserUs", "cpuSystemUs", "rssBytes", "poolSize", "poolIdle", "poolActive")...)
	require.Equal(t, object{"total": 3.0, "withPending": 1.0, "partitions": 1.0}, d["queues"])
	require.Equal(t, object{"active": 1.0, "messages": 1.0}, d["leases"])
	require.Equal(t, object{"total": 1.0, "queues": 1.0}, d["deadLetterQueue"])
	require.Equal(t, object{"dbErrors": 0.0, "ackFailed": 0.0}, d["errors"])
	worker := d["workers"].([]any)[0].(object)
	require.Equal(t, []any{"here", 0.0, "broker", 11.0}, []any{worker["hostname"], worker["workerId"], worker["service"], worker["messagesProcessed"]})
	for _, key := range []string{"avgEventLoopLagMs", "maxEventLoopLagMs"} {
		require.Contains(t, worker, key)
	}
	require.InDelta(t, 6, sumOf(shown(t, b, "/api/v1/status?queue="+q)["throughput"].([]any), "pushMessages"), 0)
	require.InDelta(t, 6, sumOf(shown(t, b, "/api/v1/status?namespace=orders&task=eu")["throughput"].([]any), "pushMessages"), 0)
	filtered := shown(t, b, "/api/v1/status?namespace=nobody")["throughput"].([]any)
	require.InDelta(t, 0, sumOf(filtered, "pushMessages"), 0)
	require.NotEmpty(t, filtered, "the health of the replicas stays")
	require.Equal(t, 360.0, shown(t, b, "/api/v1/status?from="+time.Now().Add(-8*24*time.Hour).UTC().Format(time.RFC3339))["bucketMinutes"])
}

// workerPoint are the keys of a point of worker metrics.
func workerPoint() []string {
	return []string{
		"timestamp", "pushMessages", "popMessages", "ackMessages", "pushRequests", "popRequests", "ackRequests", "ackSuccess", "ackFailed", "dlqCount",
		"dbErrors", "pushPerSecond", "popPerSecond", "ackPerSecond", "avgEventLoopLagMs", "maxEventLoopLagMs", "avgLagMs", "maxLagMs", "lagCount",
		"dbConnections", "avgFreeSlots", "minFreeSlots", "jobsDone", "avgJobQueueSize", "maxJobQueueSize", "backoffSize",
	}
}

func sumOf(points []any, key string) (sum float64) {
	for _, p := range points {
		n, _ := p.(object)[key].(float64)
		sum += n
	}
	return sum
}

func checkQueueSeries(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	lag := b.Get(t, "/api/v1/analytics/queue-lag?queue="+q).Objects(t)
	var popped float64
	for i, point := range lag {
		requireKeys(t, point, "queueName", "popCount", "avgLagMs", "maxLagMs", "bucketMinutes", "bucketTime")
		require.Equal(t, []any{q, 1.0}, []any{point["queueName"], point["bucketMinutes"]})
		popped += point["popCount"].(float64)
		require.Equal(t, point["popCount"] == 0.0, point["avgLagMs"] == nil, "no lag without a pop")
		if i > 0 {
			require.Less(t, point["bucketTime"], lag[i-1]["bucketTime"], "newest first")
		}
	}
	require.InDelta(t, 5, popped, 0)

	ops := shown(t, b, "/api/v1/analytics/queue-ops")
	requireKeys(t, ops, "timeRange", "bucketMinutes", "series", "queues")
	require.Contains(t, ops["queues"], q)
	one := shown(t, b, "/api/v1/analytics/queue-ops?queue="+q)
	require.Equal(t, []any{q}, one["queues"])
	series := one["series"].([]any)
	requireKeys(t, series[0].(object), "bucket", "queueName", "pushRequests", "pushMessages", "popMessages", "popEmpty", "ackRequests", "ackSuccess",
		"ackFailed", "transactions", "partitionsCreated", "partitionsDeleted", "partitionCount", "avgLagMs", "maxLagMs", "pushPerSecond", "popPerSecond",
		"ackPerSecond", "emptyPerSecond", "parkedCount")
	for key, want := range map[string]float64{"pushMessages": 6, "popMessages": 5, "ackSuccess": 3, "ackFailed": 0, "partitionsCreated": 1, "pushPerSecond": 0.1} {
		require.InDelta(t, want, sumOf(series, key), 0.001, key)
	}
	old := "&from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z"
	require.Empty(t, shown(t, b, "/api/v1/analytics/queue-ops?queue="+q+old)["series"])
}

func checkParked(t *testing.T, b *harness.Broker, idle string) {
	t.Helper()
	d := shown(t, b, "/api/v1/analytics/queue-parked-replicas?queue="+idle)
	requireKeys(t, d, "timeRange", "bucketMinutes", "series", "replicas")
	require.Equal(t, []any{object{"hostname": "here", "workerId": 0.0}}, d["replicas"])
	point := d["series"].([]any)[0].(object)
	requireKeys(t, point, "bucket", "queueName", "hostname", "workerId", "parkedCount")
	require.Positive(t, point["parkedCount"])
	require.Empty(t, shown(t, b, "/api/v1/analytics/queue-parked-replicas?queue=orders.eu")["series"], "nobody waited for it")
}

func checkProcesses(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	w := shown(t, b, "/api/v1/analytics/worker-metrics?hostname=here&workerId=0")
	requireKeys(t, w, "timeRange", "bucketMinutes", "pointCount", "timeSeries", "workers", "queues", "summary")
	points := w["timeSeries"].([]any)
	requireKeys(t, points[0].(object), workerPoint()...)
	require.InDelta(t, 6, sumOf(points, "pushMessages"), 0)
	require.Equal(t, []any{6.0, 5.0, 3.0, 1.0}, values(w["summary"], "pushMessages", "popMessages", "ackMessages", "dlqCount"))
	require.Equal(t, []any{q, 6.0, 5.0, 3.0}, values(w["queues"].([]any)[0], "queueName", "pushMessages", "popMessages", "ackMessages"))
	require.Equal(t, []any{"here", 6.0}, values(w["workers"].([]any)[0], "hostname", "pushMessages"))
	require.Empty(t, shown(t, b, "/api/v1/analytics/worker-metrics?hostname=elsewhere")["timeSeries"])
	require.InDelta(t, 6, sumOf(shown(t, b, "/api/v1/analytics/worker-metrics?queue="+q)["timeSeries"].([]any), "pushMessages"), 0)

	s := shown(t, b, "/api/v1/analytics/system-metrics?hostname=here")
	requireKeys(t, s, "timeRange", "bucketMinutes", "pointCount", "replicaCount", "replicas")
	require.Equal(t, 1.0, s["replicaCount"])
	replica := s["replicas"].([]any)[0].(object)
	require.Equal(t, []any{"here", 0.0, "broker"}, values(replica, "hostname", "workerId", "service"))
	require.Positive(t, replica["port"])
	sample := replica["timeSeries"].([]any)[0].(object)
	requireMillisecond(t, sample["timestamp"])
	metrics := sample["metrics"].(object)
	requireKeys(t, metrics, "cpu", "memory", "database", "uptime_seconds", "threadpool", "shared_state")
	require.Nil(t, metrics["threadpool"])
	require.Equal(t, false, metrics["shared_state"].(object)["enabled"])
	for _, leaf := range [][2]string{
		{"cpu", "user_us"}, {"cpu", "system_us"}, {"memory", "rss_bytes"}, {"database", "pool_size"}, {"database", "pool_idle"}, {"database", "pool_active"},
	} {
		figures := metrics[leaf[0]].(object)[leaf[1]].(object)
		requireKeys(t, figures, "avg", "min", "max", "last")
		require.LessOrEqual(t, figures["min"], figures["max"], leaf)
	}
	require.Positive(t, metrics["memory"].(object)["rss_bytes"].(object)["last"])
	requireKeys(t, metrics["uptime_seconds"].(object), "avg", "min", "max", "last")
	require.Empty(t, shown(t, b, "/api/v1/analytics/system-metrics?workerId=9")["replicas"])
}

func values(of any, keys ...string) (out []any) {
	for _, key := range keys {
		out = append(out, of.(object)[key])
	}
	return out
}

func checkWorkload(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	d := shown(t, b, "/api/v1/analytics/workload")
	requireKeys(t, d, "timeRange", "bucketMinutes", "groupBy", "buckets", "rows", "tenant")
	require.Equal(t, "namespace", d["groupBy"])
	row := d["rows"].([]any)[0].(object)
	requireKeys(t, row, "key", "queues", "window", "series", "now")
	require.Equal(t, []any{"orders", 2.0}, values(row, "key", "queues"))
	require.Equal(t, []any{6.0, 5.0, 3.0, 0.0}, values(row["window"], "pushMessages", "popMessages", "ackSuccess", "conflated"))
	// Who consumes without naming a group counts as one.
	require.Equal(t, []any{3.0, 1.0, 1.0, 2.0}, values(row["now"], "pending", "processing", "deadLetter", "groups"))
	require.Len(t, row["series"].(object)["push"], len(d["buckets"].([]any)))
	require.Equal(t, 3.0, d["tenant"].(object)["queues"])
	named := shown(t, b, "/api/v1/analytics/workload?groupBy=queue&queue="+q)
	require.Len(t, named["rows"], 1)
	require.Equal(t, []any{q, "orders", "eu"}, values(named["rows"].([]any)[0], "key", "namespace", "task"))
	require.Equal(t, 3.0, named["tenant"].(object)["queues"], "the tenant is all of it")
	require.Len(t, shown(t, b, "/api/v1/analytics/workload?groupBy=task&task=eu")["rows"], 1)
}

func checkSignatures(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	d := shown(t, b, "/api/v1/analytics/dlq-signatures?queue="+q)
	requireKeys(t, d, "queue", "rowsNow", "sample", "retryCounts", "groups", "oldest", "newest", "avgBytes", "signatures", "byDay")
	require.Equal(t, []any{q, 1.0, 1.0, []any{object{"group": "g", "n": 1.0}}}, values(d, "queue", "rowsNow", "sample", "groups"))
	require.Len(t, d["signatures"], 1)
	requireKeys(t, d["signatures"].([]any)[0].(object), "text", "n", "share")
	requireKeys(t, d["byDay"].([]any)[0].(object), "day", "n")
}

func checkLiveness(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	d := shown(t, b, "/api/v1/analytics/partition-liveness?limit=1")
	requireMillisecond(t, d["capturedAt"])
	row := d["rows"].([]any)[0].(object)
	requireMillisecond(t, row["oldestWriteAt"])
	requireMillisecond(t, row["newestWriteAt"])
	require.Equal(t, []any{q, "orders", "eu", 1.0, 1.0, 1.0, 1.0, 1.0, 3.0},
		values(row, "queue", "namespace", "task", "partitions", "live1h", "live24h", "live7d", "created24h", "pending"))
	require.Len(t, shown(t, b, "/api/v1/analytics/partition-liveness")["rows"], 3)
	require.Empty(t, shown(t, b, "/api/v1/analytics/partition-liveness?namespace=")["rows"], "an empty label is one")
}

func checkVolume(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	d := shown(t, b, "/api/v1/status/analytics?queue="+q)
	requireKeys(t, d, "dataPoints", "interval", "from", "to")
	require.Equal(t, "hour", d["interval"])
	points := d["dataPoints"].([]any)
	require.Len(t, points, 25, "a day and the hour it began in")
	require.InDelta(t, 6, sumOf(points, "messages"), 0)
	requireMillisecond(t, points[0].(object)["timestamp"])
	require.Equal(t, "minute", shown(t, b, "/api/v1/status/analytics?interval=minute")["interval"])
	require.Equal(t, "hour", shown(t, b, "/api/v1/status/analytics?interval=fortnight")["interval"])
	require.InDelta(t, 0, sumOf(shown(t, b, "/api/v1/status/analytics?namespace=nobody")["dataPoints"].([]any), "messages"), 0)
}

func checkPostgres(t *testing.T, b *harness.Broker) {
	t.Helper()
	d := shown(t, b, "/api/v1/analytics/postgres-stats")
	requireKeys(t, d, "timestamp", "database", "databaseCache", "tableCache", "indexCache", "cacheSummary", "deadTuples", "hotUpdates", "activeQueries",
		"autovacuumStatus", "bufferConfig", "bufferUsage", "tableSizes")
	requireMillisecond(t, d["timestamp"])
	require.Equal(t, harness.Value[string](t, b.DB, `SELECT current_database()`), d["database"])
	requireKeys(t, d["databaseCache"].(object), "diskReads", "cacheHits", "cacheHitRatio")
	rows := map[string][]string{
		"tableCache":       {"table", "diskReads", "cacheHits", "cacheHitRatio"},
		"indexCache":       {"index", "table", "diskReads", "cacheHits", "cacheHitRatio"},
		"autovacuumStatus": {"table", "deadTuples", "autovacuumCount", "lastAutovacuum"},
		"tableSizes":       {"table", "totalSize", "tableSize", "indexSize"},
	}
	for list, keys := range rows {
		entries := d[list].([]any)
		require.NotEmpty(t, entries, list)
		requireKeys(t, entries[0].(object), keys...)
	}
	require.LessOrEqual(t, len(d["indexCache"].([]any)), 20)
	for list, keys := range map[string][]string{
		"deadTuples": {"table", "deadTuples", "deadPercentage", "lastVacuum", "lastAutovacuum"},
		"hotUpdates": {"table", "totalUpdates", "hotUpdatePercentage"},
	} {
		for _, entry := range d[list].([]any) { // as soon as PostgreSQL has counted any
			requireKeys(t, entry.(object), keys...)
		}
	}
	requireKeys(t, d["cacheSummary"].(object)["tables"].(object), "hitRatio")
	requireKeys(t, d["cacheSummary"].(object)["indexes"].(object), "hitRatio")
	require.NotEmpty(t, d["bufferConfig"].(object)["sharedBuffersSize"])
	require.Equal(t, []any{}, d["bufferUsage"], "it would need an extension")
}

func checkRefusals(t *testing.T, b *harness.Broker) {
	t.Helper()
	for path, text := range map[string]string{
		"analytics/retention?groupBy=x":                     "bad groupBy",
		"analytics/workload?groupBy=x":                      "bad groupBy",
		"analytics/dlq-signatures":                          "queue required",
		"analytics/queue-ops?from=x":                        "from must be an RFC 3339 instant",
		"analytics/queue-lag?from=2026-01-02&to=2026-01-01": "from must not be after to",
		"analytics/worker-metrics?workerId=x":               "workerId must be a whole number from 0 to 2147483647",
		"status/queues?limit=0":                             "limit must be a whole number from 1 to 1000",
		"status?from=2016-01-01T00:00:00Z":                  "from must be at most 2500 days before the end of the window",
	} {
		require.Equal(t, text, errorOf(t, b, "/api/v1/"+path, http.StatusBadRequest), path)
	}
	for _, path := range []string{ // what a route does not know is not looked at
		"status?groupBy=x&workerId=x", "analytics/queue-lag?groupBy=x&workerId=-1", "analytics/queue-ops?hostname=%00&limit=x",
		"analytics/retention?workerId=x", "analytics/system-metrics?groupBy=x&queue=%00", "analytics/workload?workerId=x",
	} {
		require.Equal(t, http.StatusOK, b.Get(t, "/api/v1/"+path).Status, path)
	}
}
