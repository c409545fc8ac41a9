package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const tracesPath = "/api/v1/traces"

// traced records a trace of a message and answers its id.
func traced(t *testing.T, b *harness.Broker, partitionID, txn string, more ...any) string {
	t.Helper()
	a := b.Post(t, tracesPath, mustJSON(t, plus(object{"transactionId": txn, "partitionId": partitionID, "data": object{"step": 1}}, more...)))
	require.Equal(t, http.StatusCreated, a.Status, a)
	out := a.Object(t)
	requireKeys(t, out, "success", "traceId")
	require.Equal(t, true, out["success"])
	return out["traceId"].(string)
}

func TestTraceAsTheClientsSendIt(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 1)
	pid := b.DB.PartitionID(t, q, "p")
	name := "flow-" + q
	full := traced(t, b, pid, "a/b", "consumerGroup", "g", "eventType", "step", "workerId", "mine", "traceNames", []any{name, "z-" + q, 7, nil, "", name}, "data", []int{1})
	plain := traced(t, b, pid, "a/b", "consumerGroup", nil, "traceNames", nil)
	single := traced(t, b, pid, "c", "traceNames", name)
	odd := traced(t, b, pid, "c", "traceNames", object{"not": "a name"}, "eventType", "")

	a := b.Get(t, tracesPath+"/"+pid+"/a%2Fb")
	require.Equal(t, http.StatusOK, a.Status, a)
	out := a.Object(t)
	requireKeys(t, out, "traces")
	traces := out["traces"].([]any)
	require.Len(t, traces, 2)
	for i, want := range []map[string]any{
		{"id": full, "event_type": "step", "data": []any{1.0}, "consumer_group": "g", "worker_id": "seg-rust", "trace_names": []any{name, "z-" + q}},
		{"id": plain, "event_type": "info", "data": map[string]any{"step": 1.0}, "consumer_group": "__QUEUE_MODE__", "worker_id": "seg-rust", "trace_names": []any{}},
	} {
		got := traces[i].(map[string]any)
		at, err := time.Parse("2006-01-02T15:04:05.000Z", got["created_at"].(string))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)
		delete(got, "created_at")
		require.Equal(t, want, got, "oldest first")
	}

	a = b.Get(t, tracesPath+"/by-name/"+url.PathEscape(name)+"?limit=1&offset=1")
	out = a.Object(t)
	requireKeys(t, out, "traces", "total", "pagination")
	require.InDelta(t, 2, out["total"], 0)
	require.Equal(t, map[string]any{"limit": 1.0, "offset": 1.0}, out["pagination"])
	a = b.Get(t, tracesPath+"/by-name/"+url.PathEscape(name))
	out = a.Object(t)
	require.Equal(t, map[string]any{"limit": 100.0, "offset": 0.0}, out["pagination"])
	last := out["traces"].([]any)[1].(map[string]any)
	delete(last, "created_at")
	require.Equal(t, map[string]any{
		"id": single, "event_type": "info", "data": map[string]any{"step": 1.0}, "consumer_group": "__QUEUE_MODE__", "worker_id": "seg-rust",
		"trace_names": []any{name}, "transaction_id": "c", "partition_id": pid, "queue_name": q, "partition_name": "p", "message_payload": nil,
	}, last)
	require.Equal(t, "info", harness.Value[string](t, b.DB, `SELECT event_type FROM queen.message_traces WHERE id = $1::uuid AND message_id IS NULL`, odd))

	b.DeleteQueue(t, q)
	require.Len(t, b.Get(t, tracesPath+"/"+pid+"/a%2Fb").Object(t)["traces"], 2, "by address they stay")
	require.JSONEq(t, `{"traces":[],"total":0,"pagination":{"limit":100,"offset":0}}`, string(b.Get(t, tracesPath+"/by-name/"+url.PathEscape(name)).Body))
}

func TestTraceNamesAreListedByWhenTheyWereSeen(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	b.PushEach(t, "q", "p", 1)
	pid := b.DB.PartitionID(t, "q", "p")
	require.JSONEq(t, `{"trace_names":[],"total":0,"pagination":{"limit":50,"offset":0}}`, string(b.Get(t, tracesPath+"/names").Body))
	for i, names := range [][]string{{"old", "often"}, {"often"}, {"often", "late"}} {
		id := traced(t, b, pid, fmt.Sprint("tx", i/2), "traceNames", names)
		b.DB.Exec(t, `UPDATE queen.message_traces SET created_at = '2026-05-01 10:00Z'::timestamptz + make_interval(secs => $2::int) WHERE id = $1::uuid`, id, i)
	}
	a := b.Get(t, tracesPath+"/names?limit=2")
	out := a.Object(t)
	require.InDelta(t, 3, out["total"], 0)
	require.Equal(t, []any{
		map[string]any{"trace_name": "late", "trace_count": 1.0, "message_count": 1.0, "last_seen": "2026-05-01T10:00:02.000Z"},
		map[string]any{"trace_name": "often", "trace_count": 3.0, "message_count": 2.0, "last_seen": "2026-05-01T10:00:02.000Z"},
	}, out["trace_names"])
	a = b.Get(t, tracesPath+"/names?limit=2&after="+url.QueryEscape(out["next"].(string)))
	out = a.Object(t)
	require.NotContains(t, out, "next")
	require.Equal(t, "old", out["trace_names"].([]any)[0].(map[string]any)["trace_name"])
	require.Equal(t, "often", b.Get(t, tracesPath+"/names?offset=1").Object(t)["trace_names"].([]any)[0].(map[string]any)["trace_name"])
}

func TestBadTracesAreRefused(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const required = "transactionId and partitionId are required"
	many := `["` + strings.Repeat(`n","`, 100) + `n"]`
	for body, want := range map[string]string{
		`{}`:                             required,
		`{"transactionId":"t","data":1}`: required,
		`{"partitionId":"` + zeroUUID + `","data":1}`:                                                         required,
		`{"transactionId":"","partitionId":"` + zeroUUID + `","data":1}`:                                      required,
		`{"transactionId":"t","partitionId":"` + zeroUUID + `"}`:                                              "data is required",
		`{"transactionId":"t","partitionId":"` + zeroUUID + `","data":1,"traceNames":` + many + `}`:           "bad body: traceNames: more than 100 names",
		`{"transactionId":"t","partitionId":"` + zeroUUID + `","data":1,"traceNames":"` + repeat(1025) + `"}`: "bad body: traceNames: a name is longer than 1024 bytes",
	} {
		a := b.Post(t, tracesPath, body)
		require.Equal(t, http.StatusBadRequest, a.Status, "%.100s: %s", body, a)
		require.Equal(t, want, a.ErrorText(t), "%.100s", body)
	}
	a := b.Post(t, tracesPath, `{`)
	require.Equal(t, http.StatusBadRequest, a.Status)
	require.Contains(t, a.ErrorText(t), "bad body: ")
	a = b.Post(t, tracesPath, `{"transactionId":"t","partitionId":"nonsense","data":null}`)
	require.Equal(t, http.StatusInternalServerError, a.Status, a)
	require.Contains(t, a.ErrorText(t), "trace failed: ")
	require.Contains(t, a.ErrorText(t), `invalid input syntax for type uuid: "nonsense"`)

	for body := range map[string]bool{
		`{"transactionId":"t","partitionId":"` + zeroUUID + `","data":null}`:                                           true,
		`{"transactionId":"t","partitionId":"` + zeroUUID + `","data":"\u0000","traceNames":["` + repeat(1024) + `"]}`: true,
	} {
		require.Equal(t, http.StatusCreated, b.Post(t, tracesPath, body).Status, "nobody asks whether the message exists")
	}
	for path, want := range map[string]string{
		tracesPath + "/names?limit=0":                "limit must be a whole number from 1 to 1000",
		tracesPath + "/names?offset=x":               "offset must be a whole number from 0 to 2147483647",
		tracesPath + "/by-name/" + q + "?limit=1001": "limit must be a whole number from 1 to 1000",
		tracesPath + "/by-name/" + q + "?after=1":    `after must be the "next" of an earlier page`,
		tracesPath + "/by-name/a%00":                 "traceName: holds a NUL",
		tracesPath + "/" + zeroUUID + "/t?limit=-1":  "limit must be a whole number from 1 to 1000",
	} {
		a := b.Get(t, path)
		require.Equal(t, http.StatusBadRequest, a.Status, "%s: %s", path, a)
		require.Equal(t, want, a.ErrorText(t), path)
	}
	require.JSONEq(t, `{"traces":[]}`, string(b.Get(t, tracesPath+"/nonsense/t").Body))
	require.JSONEq(t, `{"traces":[]}`, string(b.Get(t, tracesPath+"/"+zeroUUID+"/"+q).Body))
}

func TestTracesOfAForeignPartition(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 1)
	pid := b.DB.PartitionID(t, q, "p")
	traced(t, b, pid, "t", "traceNames", q)
	b.DB.Exec(t, `UPDATE queen.queues SET tenant_id = gen_random_uuid() WHERE name = $1`, q)
	require.JSONEq(t, `{"traces":[]}`, string(b.Get(t, tracesPath+"/"+pid+"/t").Body))
	require.InDelta(t, 0, b.Get(t, tracesPath+"/by-name/"+q).Object(t)["total"], 0)
	a := b.Post(t, tracesPath, fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"data":1}`, pid))
	require.Equal(t, http.StatusNotFound, a.Status, a)
	require.JSONEq(t, `{"success":false,"error":"Message not found"}`, string(a.Body))
}
