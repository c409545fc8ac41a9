package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// shown answers the body of a GET that must succeed.
func shown(t *testing.T, b *harness.Broker, path string) object {
	t.Helper()
	a := b.Get(t, path)
	require.Equal(t, http.StatusOK, a.Status, "%s: %s", path, a)
	return a.Object(t)
}

// refreshStats reconciles the figures now and answers the summary.
func refreshStats(t *testing.T, b *harness.Broker) object {
	t.Helper()
	a := b.Post(t, "/api/v1/stats/refresh", "")
	require.Equal(t, http.StatusOK, a.Status, a)
	return a.Object(t)
}

// requireMillisecond checks the form of a timestamp of the management routes.
func requireMillisecond(t *testing.T, value any) {
	t.Helper()
	text, ok := value.(string)
	require.True(t, ok, "%v is no instant", value)
	_, err := time.Parse("2006-01-02T15:04:05.000Z", text)
	require.NoError(t, err)
}

// errorOf is the error of a GET that must be refused in this way.
func errorOf(t *testing.T, b *harness.Broker, path string, status int) string {
	t.Helper()
	a := b.Get(t, path)
	require.Equal(t, status, a.Status, "%s: %s", path, a)
	return a.ErrorText(t)
}

func sixFigures(total, pending, processing, completed, dead float64) object {
	return object{"total": total, "pending": pending, "processing": processing, "completed": completed, "failed": nil, "deadLetter": dead}
}

// layQueue makes a queue of two partitions: of p1's five messages group g has completed one
// and dead-lettered one, and holds two under a lease; p2's two messages nobody has seen.
func layQueue(t *testing.T, b *harness.Broker, q string) {
	t.Helper()
	b.Configure(t, q, `{"priority":4,"namespace":"depot","task":"scan","leaseTime":60,"ttl":77}`)
	b.PushTogether(t, q, "p1", 5)
	b.PushEach(t, q, "p2", 2)
	p := b.PopPartition(t, q, "p1", "consumerGroup=g&batch=2")
	b.AckOK(t, "g", p.Messages[0].Ack("completed"))
	b.AckOK(t, "g", p.Messages[1].Ack("dlq"))
	require.Len(t, b.PopPartition(t, q, "p1", "consumerGroup=g&batch=2").Messages, 2)
}

func TestQueueDepth(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	layQueue(t, b, q)
	path := "/api/v1/resources/queues/" + q + "/depth"
	lane := func(name string, pending, processing float64) object {
		return object{"partition": name, "pending": pending, "processing": processing, "ready": pending - processing}
	}
	want := object{
		"queue": q, "group": nil, "pending": 5.0, "processing": 2.0, "ready": 3.0, "partitionsPending": 2.0, "partitionsReady": 2.0,
		"conflation": false, "effectivePending": 5.0, "effectiveReady": 3.0, "partitions": []any{lane("p1", 3, 2), lane("p2", 2, 0)},
	}
	require.Equal(t, want, shown(t, b, path))
	want["group"] = "g"
	require.Equal(t, want, shown(t, b, path+"?group=g"))
	other := shown(t, b, path+"?group=nobody")
	require.Equal(t, []any{"nobody", 7.0, 0.0, 7.0}, []any{other["group"], other["pending"], other["processing"], other["ready"]}, "all that is retained lies before it")
	require.Equal(t, shown(t, b, path)["pending"], shown(t, b, path+"?group=")["pending"], "an empty group is none")
	require.Equal(t, "Queue not found", errorOf(t, b, "/api/v1/resources/queues/"+q+"-unknown/depth", http.StatusNotFound))
}

func TestQueueStatusDetail(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	layQueue(t, b, q)
	d := shown(t, b, "/api/v1/status/queues/"+q+"?includePartitions=true")
	requireKeys(t, d, "queue", "partitions", "totals")
	queue := d["queue"].(object)
	requireMillisecond(t, queue["createdAt"])
	delete(queue, "createdAt")
	require.Equal(t, object{
		"id": harness.Value[string](t, b.DB, `SELECT id::text FROM queen.queues WHERE name = $1`, q), "name": q, "namespace": "depot", "task": "scan",
		"priority": 4.0, "encryptionActive": false,
		"config": object{"leaseTime": 60.0, "retryLimit": 3.0, "retryDelay": 1000.0, "ttl": 77.0, "maxQueueSize": 0.0, "deadLetterQueue": true},
	}, queue)
	require.Equal(t, object{"messages": sixFigures(7, 5, 2, 1, 1)}, d["totals"])
	lanes := d["partitions"].([]any)
	require.Len(t, lanes, 2)
	p1, p2 := lanes[0].(object), lanes[1].(object)
	requireKeys(t, p1, "id", "name", "createdAt", "messages", "stats", "cursor", "lastActivity", "oldestMessage", "newestMessage")
	require.Equal(t, []any{"p1", sixFigures(5, 3, 2, 1, 1), p1["messages"]}, []any{p1["name"], p1["stats"], p1["stats"]})
	require.Equal(t, 0.0, p1["cursor"].(object)["batchesConsumed"])
	require.Positive(t, p1["cursor"].(object)["totalConsumed"])
	for _, key := range []string{"createdAt", "lastActivity", "oldestMessage", "newestMessage"} {
		requireMillisecond(t, p1[key])
	}
	require.Nil(t, p2["lastActivity"], "no group was there")
	require.Equal(t, object{"totalConsumed": 0.0, "batchesConsumed": 0.0}, p2["cursor"])
	require.Equal(t, "Queue not found", errorOf(t, b, "/api/v1/status/queues/"+url.PathEscape(q+"/unknown"), http.StatusNotFound))

	// The same figures in the other detail.
	detail := shown(t, b, "/api/v1/resources/queues/"+q)
	require.Equal(t, sixFigures(7, 5, 2, 1, 1), detail["totals"])
	require.Equal(t, p1["stats"], detail["partitions"].([]any)[0].(object)["stats"])
	require.Equal(t, with(optionDefaults(), "priority", 4.0, "leaseTime", 60.0, "ttl", 77.0, "namespace", "depot", "task", "scan"), detail["options"])
}

func TestReconciledFiguresOfQueues(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	layQueue(t, b, q)
	ns := q + "-ns" // nobody else's
	b.Configure(t, q, fmt.Sprintf(`{"namespace":%q,"task":%q}`, ns, ns))
	b.Configure(t, q+"-2", fmt.Sprintf(`{"namespace":%q}`, ns))
	sum := refreshStats(t, b)
	require.Equal(t, "segments", sum["engine"])
	require.Positive(t, sum["segPartitions"])

	page := shown(t, b, "/api/v1/status/queues?namespace="+ns)
	require.Equal(t, object{"limit": 100.0, "offset": 0.0}, page["pagination"])
	queues := page["queues"].([]any)
	require.Len(t, queues, 2)
	first := queues[0].(object)
	requireMillisecond(t, first["createdAt"])
	require.Equal(t, []any{q, ns, ns, 2.0, 0.0}, []any{first["name"], first["namespace"], first["task"], first["partitions"], first["retainedBytes"]})
	require.Equal(t, object{"total": 7.0, "pending": 5.0, "processing": 2.0, "completed": 1.0, "deadLetter": 1.0}, first["messages"])
	for query, names := range map[string][]string{
		"&queue=" + q: {q}, "&task=" + ns: {q}, "&limit=1": {q}, "&limit=1&offset=1": {q + "-2"}, "&offset=2": {},
		"&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z": {q, q + "-2"}, // the last figures, whenever
	} {
		got := []string{}
		for _, queue := range shown(t, b, "/api/v1/status/queues?namespace="+ns+query)["queues"].([]any) {
			got = append(got, queue.(object)["name"].(string))
		}
		require.Equal(t, names, got, query)
	}

	label := func(kind, kinds, name string) object {
		for _, entry := range shown(t, b, "/api/v1/resources/"+kinds)[kinds].([]any) {
			if e := entry.(object); e[kind] == name {
				return e
			}
		}
		return nil
	}
	messages := object{"total": 7.0, "pending": 5.0}
	require.Equal(t, object{"namespace": ns, "queues": 2.0, "partitions": 2.0, "messages": messages}, label("namespace", "namespaces", ns))
	require.Equal(t, object{"task": ns, "queues": 1.0, "partitions": 2.0, "messages": messages}, label("task", "tasks", ns))
	require.NotNil(t, label("task", "tasks", ""), "queues without a task are under the empty one")

	// In the list pending is as old as the refresh, and with stats=cached all of it.
	b.PushEach(t, q, "p3", 1)
	listed := func(query string) object {
		for _, entry := range shown(t, b, "/api/v1/resources/queues"+query)["queues"].([]any) {
			if e := entry.(object); e["name"] == q {
				return e
			}
		}
		return nil
	}
	require.Equal(t, []any{3.0, object{"total": 8.0, "pending": 5.0, "processing": 2.0}}, []any{listed("")["partitions"], listed("")["messages"]})
	cached := listed("?stats=cached")
	require.Equal(t, []any{2.0, object{"total": 7.0, "pending": 5.0, "processing": 2.0}}, []any{cached["partitions"], cached["messages"]})
}

func TestChangedPartitions(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range []string{"b", "a", "c"} {
		b.PushEach(t, q, lane, 2)
	}
	ask := func(entries string) object {
		a := b.Post(t, "/api/v1/partitions/changed", `{"entries":`+entries+`}`)
		require.Equal(t, http.StatusOK, a.Status, a)
		body := a.Object(t)
		requireKeys(t, body, "safeTime", "safeTimeDegraded", "entries")
		_, err := time.Parse("2006-01-02T15:04:05.000000Z", body["safeTime"].(string))
		require.NoError(t, err)
		return body
	}
	names := func(entry any) (out []string) {
		for _, p := range entry.(object)["partitions"].([]any) {
			out = append(out, p.(object)["name"].(string))
		}
		return out
	}
	require.Equal(t, []any{}, ask(`[]`)["entries"])
	all := ask(fmt.Sprintf(`[{"queue":%q},{"queue":%q,"since":"2000-01-01T00:00:00Z"},{"queue":"%s-unknown"},{"queue":%q,"after":"?"}]`, q, q, q, q))["entries"].([]any)
	require.Equal(t, []string{"a", "b", "c"}, names(all[0]))
	require.Nil(t, all[0].(object)["next"])
	lane := all[0].(object)["partitions"].([]any)[0].(object)
	requireKeys(t, lane, "name", "lastOffset", "logStart", "lastWriteAt")
	require.Equal(t, []any{1.0, 0.0}, []any{lane["lastOffset"], lane["logStart"]})
	require.Equal(t, []string{"b", "a", "c"}, names(all[1]), "in the order of their last write")
	require.Equal(t, object{"queue": q + "-unknown", "error": "UNKNOWN_TOPIC_OR_PARTITION"}, all[2])
	require.Equal(t, object{"queue": q, "error": "BAD_CURSOR"}, all[3])
	page := ask(fmt.Sprintf(`[{"queue":%q,"limit":2}]`, q))["entries"].([]any)[0].(object)
	require.Equal(t, []string{"a", "b"}, names(page))
	require.Equal(t, []string{"c"}, names(ask(fmt.Sprintf(`[{"queue":%q,"limit":2,"after":%q}]`, q, page["next"]))["entries"].([]any)[0]))

	for body, text := range map[string]string{
		`{"entries":5}`:                                   "bad body: entries: an array is allowed here, got a number",
		`{"entries":[{"queue":""}]}`:                      "bad body: entries[0].queue: a name is needed",
		`{"entries":[{"queue":"q","since":"yesterday"}]}`: `bad body: entries[0].since: "yesterday" is no RFC 3339 instant`,
	} {
		a := b.Post(t, "/api/v1/partitions/changed", body)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Equal(t, text, a.ErrorText(t))
	}
}
