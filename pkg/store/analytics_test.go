package store_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// read decodes what a reader has answered, which must not be an error.
func read[T any](t *testing.T) func(doc store.RawJSON, err error) T {
	t.Helper()
	return func(doc store.RawJSON, err error) (v T) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(doc, &v), "%s", doc)
		return v
	}
}

type document = map[string]any

// layMinutes writes what two replicas have counted of two queues: at 12:00 and 12:01 of a,
// and at 12:07 of b. A queue of another tenant has counted most.
func (b *bench) layMinutes() (from time.Time, foreign uuid.UUID) {
	b.t.Helper()
	from, foreign = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), uuid.New()
	b.configure("a", `{"namespace": "n", "task": "t"}`, false)
	b.configure("b", `{"namespace": "m"}`, false)
	b.exec(`INSERT INTO queen.queues (name, tenant_id) VALUES ('foreign', $1)`, foreign)
	minute := func(queue string, n int, pushed, popped int64, lag, longest *float64, parked float64) {
		b.exec(`INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, push_requests, push_messages, pop_requests, pop_messages, pop_empty,
				ack_requests, ack_success, ack_failed, transactions, avg_lag_ms, max_lag_ms, parked_count, partitions_created, partitions_deleted, partition_count)
			SELECT $2, q.id, 1, $3, 4, $4, 2, 3, $4, 1, 1, $5, $6, $7, 2, 1, 9 FROM queen.queues AS q WHERE q.name = $1`,
			queue, from.Add(time.Duration(n)*time.Minute), pushed, popped, lag, longest, parked)
	}
	ten, forty, ninety := 10.0, 40.0, 90.0
	minute("a", 0, 60, 30, &ten, &forty, 3)
	minute("a", 1, 120, 10, &forty, &ninety, 0)
	minute("b", 7, 30, 0, nil, nil, 0)
	minute("foreign", 1, 9999, 9999, &ten, &ten, 99)
	return from, foreign
}

func TestQueueLagIsWeightedByWhatWasPopped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	from, _ := b.layMinutes()
	f := store.TimeseriesFilter{Tenant: store.DefaultTenant(), From: from, To: from.Add(2 * time.Hour)} // points of five minutes
	point := func(queue string, popped float64, mean, longest any, at string) document {
		return document{"queueName": queue, "popCount": popped, "avgLagMs": mean, "maxLagMs": longest, "bucketMinutes": 5.0, "bucketTime": "2026-05-01T12:0" + at + ":00.000Z"}
	}
	require.Equal(t, []document{point("b", 0, nil, nil, "5"), point("a", 40, 17.5, 90.0, "0")}, read[[]document](t)(b.store.QueueLag(t.Context(), f)))
	f.Queue = "a"
	require.Len(t, read[[]document](t)(b.store.QueueLag(t.Context(), f)), 1)
	f.From = from.Add(time.Minute) // the first minute is another
	require.Equal(t, 10.0, read[[]document](t)(b.store.QueueLag(t.Context(), f))[0]["popCount"])
	f.From = from.Add(90 * time.Second) // it begins in the middle of a minute
	require.Equal(t, 10.0, read[[]document](t)(b.store.QueueLag(t.Context(), f))[0]["popCount"])
	f.Queue = "foreign"
	require.Empty(t, read[[]document](t)(b.store.QueueLag(t.Context(), f)))
}

func TestQueueOpsAreCountedPerPoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	from, _ := b.layMinutes()
	f := store.TimeseriesFilter{Tenant: store.DefaultTenant(), From: from, To: from.Add(2 * time.Hour)}
	doc := read[document](t)(b.store.QueueOps(t.Context(), f))
	require.Equal(t, document{"from": "2026-05-01T12:00:00.000Z", "to": "2026-05-01T14:00:00.000Z"}, doc["timeRange"])
	require.Equal(t, 5.0, doc["bucketMinutes"])
	require.Equal(t, []any{"a", "b"}, doc["queues"])
	require.Equal(t, []any{
		document{
			"bucket": "2026-05-01T12:00:00.000Z", "queueName": "a", "pushRequests": 2.0, "pushMessages": 180.0, "popMessages": 40.0, "popEmpty": 4.0,
			"ackRequests": 6.0, "ackSuccess": 40.0, "ackFailed": 2.0, "transactions": 2.0, "partitionsCreated": 4.0, "partitionsDeleted": 2.0,
			"partitionCount": 9.0, "avgLagMs": 17.5, "maxLagMs": 90.0, "pushPerSecond": 0.6, "popPerSecond": 0.133, "ackPerSecond": 0.133,
			"emptyPerSecond": 0.013, "parkedCount": 0.6, // three in one of five minutes
		},
		document{
			"bucket": "2026-05-01T12:05:00.000Z", "queueName": "b", "pushRequests": 1.0, "pushMessages": 30.0, "popMessages": 0.0, "popEmpty": 2.0,
			"ackRequests": 3.0, "ackSuccess": 0.0, "ackFailed": 1.0, "transactions": 1.0, "partitionsCreated": 2.0, "partitionsDeleted": 1.0,
			"partitionCount": 9.0, "avgLagMs": nil, "maxLagMs": nil, "pushPerSecond": 0.1, "popPerSecond": 0.0, "ackPerSecond": 0.0,
			"emptyPerSecond": 0.007, "parkedCount": 0.0,
		},
	}, doc["series"])
}

// Of the point that is still going on only the minutes that have passed count.
func TestParkedPopsAreAveragedOverTheTimeThatHasPassed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{}`, false)
	b.exec(`INSERT INTO queen.queue_parked_replica (bucket_time, queue_id, hostname, parked_count)
		SELECT date_trunc('minute', now()), q.id, h, n FROM queen.queues AS q, (VALUES ('one', 2), ('two', 0.5)) AS r (h, n)`)
	doc := read[document](t)(b.store.QueueParkedReplicas(t.Context(), store.TimeseriesFilter{Tenant: store.DefaultTenant()}))
	require.Equal(t, []any{document{"hostname": "one", "workerId": 0.0}, document{"hostname": "two", "workerId": 0.0}}, doc["replicas"])
	series := doc["series"].([]any)
	require.Len(t, series, 2)
	first := series[0].(document)
	requireMillis(t, first["bucket"])
	delete(first, "bucket")
	require.Equal(t, document{"queueName": "q", "hostname": "one", "workerId": 0.0, "parkedCount": 2.0}, first)

	b.exec(`UPDATE queen.queue_parked_replica SET bucket_time = '2026-05-01T12:03:00Z'`)
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	doc = read[document](t)(b.store.QueueParkedReplicas(t.Context(), store.TimeseriesFilter{Tenant: store.DefaultTenant(), From: at, To: at.Add(2 * time.Hour)}))
	require.Equal(t, 0.4, doc["series"].([]any)[0].(document)["parkedCount"], "two in one of five minutes")
}

func TestWorkloadByLabel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	from, _ := b.layMinutes()
	b.configure("c", `{"namespace": "n"}`, false) // nobody did anything
	b.exec(`INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
		SELECT g, q.id, 'all', now() FROM queen.queues AS q, (VALUES ('a', 'g'), ('a', 'h'), ('c', 'g')) AS m (queue, g) WHERE q.name = m.queue`)
	b.exec(`INSERT INTO queen.stats (stat_type, stat_key, queue_id, child_count, pending_messages, processing_messages, dead_letter_messages, retained_bytes)
		SELECT 'queue', id, id, 2, 5, 3, 1, 100 FROM queen.queues WHERE name IN ('a', 'b')`)
	f := store.TimeseriesFilter{Tenant: store.DefaultTenant(), From: from, To: from.Add(9 * time.Minute)}
	doc := read[document](t)(b.store.Workload(t.Context(), f))
	require.Equal(t, "namespace", doc["groupBy"])
	require.Len(t, doc["buckets"], 10)
	rows := doc["rows"].([]any)
	require.Len(t, rows, 2)
	n, m := rows[0].(document), rows[1].(document)
	require.Equal(t, []any{"n", 2.0, "m", 1.0}, []any{n["key"], n["queues"], m["key"], m["queues"]}, "the busiest label first")
	require.NotContains(t, n, "namespace")
	require.Equal(t, document{
		"pushMessages": 180.0, "pushRequests": 2.0, "popMessages": 40.0, "popEmpty": 4.0, "ackRequests": 6.0, "ackSuccess": 40.0, "ackFailed": 2.0,
		"transactions": 2.0, "conflated": 0.0, "partitionsCreated": 4.0, "partitionsDeleted": 2.0, "parkedAvg": 0.3, "avgLagMs": 17.5, "maxLagMs": 90.0,
	}, n["window"])
	require.Equal(t, document{
		"push": []any{60.0, 120.0, nil, nil, nil, nil, nil, nil, nil, nil}, "pop": []any{30.0, 10.0, nil, nil, nil, nil, nil, nil, nil, nil},
		"popEmpty": []any{2.0, 2.0, nil, nil, nil, nil, nil, nil, nil, nil}, "ackFailed": []any{1.0, 1.0, nil, nil, nil, nil, nil, nil, nil, nil},
		"parked": []any{3.0, 0.0, nil, nil, nil, nil, nil, nil, nil, nil}, "avgLagMs": []any{10.0, 40.0, nil, nil, nil, nil, nil, nil, nil, nil},
		"maxLagMs": []any{40.0, 90.0, nil, nil, nil, nil, nil, nil, nil, nil},
	}, n["series"])
	require.Equal(t, document{
		"pending": 5.0, "processing": 3.0, "deadLetter": 1.0, "retainedBytes": 100.0, "partitions": 2.0, "groups": 2.0, "queuesWithoutGroup": 0.0,
		"pendingWithoutGroup": 0.0, "queuesTouched": 1.0, "queuesActive": 1.0,
	}, n["now"])
	require.Equal(t, []any{1.0, 5.0}, []any{m["now"].(document)["queuesWithoutGroup"], m["now"].(document)["pendingWithoutGroup"]})
	tenant := doc["tenant"].(document)
	require.Equal(t, []any{3.0, 210.0, 2.0}, []any{tenant["queues"], tenant["window"].(document)["pushMessages"], tenant["now"].(document)["groups"]})

	f.GroupBy, f.Queue = "queue", "a"
	doc = read[document](t)(b.store.Workload(t.Context(), f))
	rows = doc["rows"].([]any)
	require.Len(t, rows, 1)
	require.Equal(t, []any{"a", "n", "t"}, []any{rows[0].(document)["key"], rows[0].(document)["namespace"], rows[0].(document)["task"]})
	require.Equal(t, tenant, doc["tenant"], "whatever the names say")
	require.Empty(t, read[document](t)(b.store.Workload(t.Context(), store.TimeseriesFilter{Tenant: uuid.New()}))["rows"])
}

func TestSignaturesFoldWhatDiffers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for text, want := range map[string]string{
		"order 550e8400-e29b-41d4-a716-446655440000 failed":     "order <id> failed",
		"hash DEADBEEFdeadbeef01 and 0xdeadbeefdeadbeef":        "hash <id> and <id>",
		"a deadbee and a facade stay":                           "a deadbee and a facade stay",
		"at 2026-05-06T07:08:09.123Z or 2026-05-06 07:08:09+02": "at <date> or <date>",
		"on 2026-05-06,  line 17\n\tof 12345678901234567890":    "on <date>, line <n> of <n>",
		"  blanks around  ":                                     "blanks around",
		"":                                                      "",
	} {
		var got string
		b.one([]any{&got}, `SELECT queen.dlq_signature_v1($1)`, text)
		require.Equal(t, want, got)
	}
	require.EqualValues(t, 120, b.count(`SELECT length(queen.dlq_signature_v1(repeat('x', 1000)))`))
	require.EqualValues(t, 0, b.count(`SELECT length(queen.dlq_signature_v1(NULL))`))
}

func TestDLQSignatures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	other := b.queued(segment("other", "p", 1)).PartitionID
	for n := range 12 { // the newest has the highest number; ten kinds of errors
		b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", error, payload, retry_count, failed_at)
			VALUES ($1, $2, $3::int, $4, '{}', $5, '2026-05-01T23:55:00Z'::timestamptz + $3::int * interval '1 minute')`,
			pid, []string{"g", "h"}[n%2], n, fmt.Sprintf("error %s %d", []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "a", "a", "b"}[n], n), 3)
	}
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", error) VALUES ($1, 'g', 0, 'not of this queue')`, other)
	f := store.SignatureFilter{Tenant: store.DefaultTenant(), Queue: "q"}
	doc := read[document](t)(b.store.DLQSignatures(t.Context(), f))
	require.Equal(t, []any{12.0, 12.0, "2026-05-01T23:55:00.000Z", "2026-05-02T00:06:00.000Z"}, []any{doc["rowsNow"], doc["sample"], doc["oldest"], doc["newest"]})
	require.Len(t, doc["signatures"], 8)
	require.Equal(t, document{"text": "error a <n>", "n": 3.0, "share": 0.25}, doc["signatures"].([]any)[0])
	require.Equal(t, []any{document{"group": "g", "n": 6.0}, document{"group": "h", "n": 6.0}}, doc["groups"])
	require.Equal(t, []any{document{"retryCount": 3.0, "n": 12.0}}, doc["retryCounts"])
	require.Equal(t, []any{document{"day": "2026-05-01", "n": 5.0}, document{"day": "2026-05-02", "n": 7.0}}, doc["byDay"])

	f.Limit = 2
	doc = read[document](t)(b.store.DLQSignatures(t.Context(), f))
	require.Equal(t, []any{12.0, 2.0, "2026-05-02T00:05:00.000Z"}, []any{doc["rowsNow"], doc["sample"], doc["oldest"]}, "the newest ones")
	f.Queue = "unknown"
	doc = read[document](t)(b.store.DLQSignatures(t.Context(), f))
	require.Equal(t, []any{0.0, 0.0, nil, []any{}}, []any{doc["rowsNow"], doc["sample"], doc["oldest"], doc["signatures"]})
}

func TestPartitionLiveness(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("few", `{"namespace": "n"}`, false)
	b.configure("many", `{"namespace": "", "task": "t"}`, false)
	for queue, ages := range map[string][]string{"few": {"2 hours"}, "many": {"1 minute", "23 hours", "6 days", "8 days"}} {
		for _, age := range ages {
			b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_write_at, created_at)
				SELECT q.id, $2, now() - $2::text::interval, now() - $2::text::interval FROM queen.queues AS q WHERE q.name = $1`, queue, age)
		}
	}
	liveness := func(f store.LivenessFilter) (rows []any) {
		f.Tenant = store.DefaultTenant()
		doc := read[document](t)(b.store.PartitionLiveness(t.Context(), f))
		requireMillis(t, doc["capturedAt"])
		return doc["rows"].([]any)
	}
	rows := liveness(store.LivenessFilter{})
	require.Len(t, rows, 2)
	first := rows[0].(document)
	for key, age := range map[string]time.Duration{"oldestWriteAt": 8 * 24 * time.Hour, "newestWriteAt": time.Minute} {
		at, err := time.Parse("2006-01-02T15:04:05.000Z", first[key].(string))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(-age), at, time.Hour)
		delete(first, key)
	}
	require.Equal(t, document{
		"queue": "many", "namespace": "", "task": "t", "partitions": 4.0, "live1h": 1.0, "live24h": 2.0, "live7d": 3.0, "created24h": 2.0, "pending": 0.0,
	}, first)
	label, none := "n", ""
	require.Equal(t, "few", liveness(store.LivenessFilter{Namespace: &label})[0].(document)["queue"])
	require.Equal(t, "many", liveness(store.LivenessFilter{Namespace: &none})[0].(document)["queue"], "an empty label is one")
	require.Empty(t, liveness(store.LivenessFilter{Queue: &none}))
	require.Len(t, liveness(store.LivenessFilter{Limit: 1}), 1)
}

func TestMessageVolume(t *testing.T) {
	t.Parallel()
	b := setup(t)
	from := time.Date(2026, 5, 1, 10, 30, 0, 0, time.UTC)
	for i, queue := range []string{"n.t", "n.t", "n.t", "m.t"} {
		v := b.queued(fresh(queue, "p", i+1))
		b.exec(`UPDATE queen.log_segments SET created_at = $3 WHERE partition_id = $1 AND base_offset = $2`, v.PartitionID, v.BaseOffset, from.Add(time.Duration(i)*30*time.Minute))
	}
	f := store.TimeseriesFilter{Tenant: store.DefaultTenant(), From: from, To: from.Add(90 * time.Minute)}
	point := func(at string, n float64) document { return document{"timestamp": at, "messages": n} }
	require.Equal(t, document{
		"interval": "hour", "from": "2026-05-01T10:30:00.000Z", "to": "2026-05-01T12:00:00.000Z",
		"dataPoints": []any{point("2026-05-01T10:00:00.000Z", 1), point("2026-05-01T11:00:00.000Z", 5), point("2026-05-01T12:00:00.000Z", 4)},
	}, read[document](t)(b.store.Analytics(t.Context(), f)))
	f.Interval, f.Namespace = "day", "n"
	require.Equal(t, []any{point("2026-05-01T00:00:00.000Z", 6)}, read[document](t)(b.store.Analytics(t.Context(), f))["dataPoints"])
	f.Interval, f.Queue = "minute", "unknown"
	doc := read[document](t)(b.store.Analytics(t.Context(), f))
	require.Len(t, doc["dataPoints"], 91)
	require.Equal(t, point("2026-05-01T10:30:00.000Z", 0), doc["dataPoints"].([]any)[0], "empty points are 0")
	require.Equal(t, "hour", read[document](t)(b.store.Analytics(t.Context(), store.TimeseriesFilter{Interval: "fortnight"}))["interval"])
	require.Len(t, read[document](t)(b.store.Analytics(t.Context(), store.TimeseriesFilter{}))["dataPoints"], 25, "the last day")
}

// laneAt makes a partition that was written at an instant.
func (b *bench) laneAt(queue, name string, written time.Time) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, log_start, last_write_at)
		SELECT q.id, $2, 7, 3, $3 FROM queen.queues AS q WHERE q.name = $1`, queue, name, written)
}

// changed asks for the changes of some queues and returns the answers, and the instant
// that goes with them.
func (b *bench) changed(entries ...store.ChangedEntry) (answers []document, safe time.Time) {
	b.t.Helper()
	doc := read[struct {
		SafeTime         time.Time
		SafeTimeDegraded bool
		Entries          []document
	}](b.t)(b.store.PartitionsChanged(b.t.Context(), store.DefaultTenant(), append([]store.ChangedEntry{}, entries...), time.Minute))
	require.False(b.t, doc.SafeTimeDegraded)
	require.Len(b.t, doc.Entries, len(entries))
	return doc.Entries, doc.SafeTime
}

// sweep reads all pages of a queue.
func (b *bench) sweep(queue string, since *time.Time, limit int) (names []string) {
	b.t.Helper()
	for entry := (store.ChangedEntry{Queue: queue, Since: since, Limit: limit}); ; {
		answers, _ := b.changed(entry)
		for _, p := range answers[0]["partitions"].([]any) {
			names = append(names, p.(document)["name"].(string))
		}
		next, more := answers[0]["next"].(string)
		if !more {
			return names
		}
		entry.After = &next
	}
}

func TestChangedPartitionsAreSweptByNameOrByWrite(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{}`, false)
	at := time.Date(2026, 5, 1, 12, 0, 0, 123456000, time.UTC)
	for i, name := range []string{"é/2", "a", "c", "b", "d"} { // the last two at the same instant
		b.laneAt("q", name, at.Add(time.Duration(min(i, 3))*time.Microsecond))
	}
	answers, _ := b.changed(store.ChangedEntry{Queue: "q", Limit: 1000})
	require.Equal(t, document{"name": "a", "lastOffset": 7.0, "logStart": 3.0, "lastWriteAt": "2026-05-01T12:00:00.123457Z"}, answers[0]["partitions"].([]any)[0])
	require.Nil(t, answers[0]["next"], "the page did not fill")
	since := at.Add(time.Microsecond)
	for limit := 1; limit < 7; limit++ {
		require.Equal(t, []string{"a", "b", "c", "d", "é/2"}, b.sweep("q", nil, limit), limit)
		require.Equal(t, []string{"é/2", "a", "c", "b", "d"}, b.sweep("q", &at, limit), limit)
		require.Equal(t, []string{"a", "c", "b", "d"}, b.sweep("q", &since, limit), "since is inclusive")
	}
}

func TestChangedPartitionsSayWhatIsWrongPerEntry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{}`, false)
	b.laneAt("q", "p", time.Now())
	answers, _ := b.changed(store.ChangedEntry{Queue: "q", Limit: 1})
	byName := answers[0]["next"].(string)
	since := time.Now().Add(-time.Hour)
	answers, _ = b.changed(store.ChangedEntry{Queue: "q", Since: &since, Limit: 1})
	byWrite := answers[0]["next"].(string)
	bad := document{"queue": "q", "error": "BAD_CURSOR"}
	for _, c := range []struct {
		after string
		since *time.Time
	}{
		{byWrite, nil}, {byName, &since}, {"", nil}, {"n.zz", nil}, {"n.6", nil}, {"n.ff", nil}, {"w.99999999999999999999.70", &since}, {"x", &since},
	} {
		answers, _ := b.changed(store.ChangedEntry{Queue: "q", Since: c.since, After: &c.after, Limit: 1}, store.ChangedEntry{Queue: "q", Limit: 2})
		require.Equal(t, bad, answers[0], c.after)
		require.Len(t, answers[1]["partitions"], 1, "the other entries are answered")
	}
	answers, _ = b.changed(store.ChangedEntry{Queue: "unknown", Limit: 1})
	require.Equal(t, document{"queue": "unknown", "error": "UNKNOWN_TOPIC_OR_PARTITION"}, answers[0])
	b.changed() // nothing is asked
}

// What an open transaction has written is not told yet, and safeTime stays behind it.
func TestTheSafeTimeIsBehindTheOldestTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, safe := b.changed()
	require.WithinDuration(t, time.Now().Add(-5*time.Second), safe, 4*time.Second)
	b.inside(`SELECT 1`, func() {
		var at time.Time
		b.one([]any{&at}, `SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		_, safe := b.changed()
		require.Equal(t, at.Add(-5*time.Second).UTC(), safe.UTC())
	})
}

// Roles that may not see the sessions of others have to guess.
func TestTheSafeTimeIsDegradedWhereSessionsAreHidden(t *testing.T) {
	t.Parallel()
	b := setup(t)
	role := "blind_" + uuid.NewString()
	b.exec(`CREATE ROLE "` + role + `"`)
	defer b.exec(`DROP ROLE "` + role + `"`)
	b.inside(`SELECT 1`, func() {
		session, err := b.db.Session(t.Context())
		require.NoError(t, err)
		defer func() { _ = session.Close(t.Context()) }()
		_, err = session.Exec(t.Context(), `SET ROLE "`+role+`"`)
		require.NoError(t, err)
		var age float64
		var degraded bool
		require.NoError(t, session.QueryRow(t.Context(), `SELECT extract(epoch FROM clock_timestamp() - r_at), r_degraded FROM queen.log_safe_time_v1(60000)`).Scan(&age, &degraded))
		require.True(t, degraded)
		require.InDelta(t, 60, age, 10)
	})
}
