package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// messagePage is an answer of the listing of messages.
type messagePage struct {
	Messages []listedMessage `json:"messages"`
	Mode     json.RawMessage `json:"mode"`
	Total    int             `json:"total"`
	Next     string          `json:"next"`
}

type listedMessage struct {
	ID               *string         `json:"id"`
	TransactionID    *string         `json:"transactionId"`
	TxnHash          string          `json:"txnHash"`
	PartitionID      string          `json:"partitionId"`
	Queue            string          `json:"queue"`
	Partition        string          `json:"partition"`
	Status           string          `json:"status"`
	PayloadAvailable bool            `json:"payloadAvailable"`
	Data             json.RawMessage `json:"data"`
	Payload          json.RawMessage `json:"payload"`
	PayloadBytes     int             `json:"payloadBytes"`
	PayloadPreview   string          `json:"payloadPreview"`
	CreatedAt        time.Time       `json:"createdAt"`
}

// browse lists the messages of a queue. more is appended to the query.
func browse(t *testing.T, b *harness.Broker, queue, more string) messagePage {
	t.Helper()
	a := b.Get(t, "/api/v1/messages?queue="+url.QueryEscape(queue)+more)
	require.Equal(t, http.StatusOK, a.Status, a)
	var page messagePage
	a.Into(t, &page)
	require.Len(t, page.Messages, page.Total, a)
	return page
}

func (p messagePage) payloads() []string {
	out := []string{}
	for _, m := range p.Messages {
		out = append(out, string(m.Payload))
	}
	return out
}

func messagePath(partitionID, txn string) string {
	return "/api/v1/messages/" + partitionID + "/" + url.PathEscape(txn)
}

func TestAListedMessageHasItsKeys(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"priority":3}`)
	const trace = "0190b7a4-5f3c-7e21-9c4d-8a6b1e2f3d4c"
	a := b.Post(t, "/api/v1/transaction", fmt.Sprintf(
		`{"operations":[{"type":"push","items":[{"queue":%q,"partition":"p","transactionId":"a/b c","traceId":%q,"payload":{"n":"<&>"}}]}]}`, q, trace))
	require.Equal(t, http.StatusOK, a.Status, a)

	a = b.Get(t, "/api/v1/messages?queue="+q+"&consumerGroup=ignored&unknown=1")
	require.Equal(t, http.StatusOK, a.Status, a)
	page := a.Object(t)
	requireKeys(t, page, "messages", "mode", "total")
	require.Equal(t, map[string]any{"hasQueueMode": false, "busGroupsCount": 0.0, "type": "none"}, page["mode"])
	m := page["messages"].([]any)[0].(map[string]any)
	at, err := time.Parse("2006-01-02T15:04:05.000Z", m["createdAt"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	require.Regexp(t, `^[0-9a-f]{32}$`, m["txnHash"])
	requireUUIDv7(t, m["id"].(string))
	delete(m, "createdAt")
	delete(m, "txnHash")
	delete(m, "id")
	payload := map[string]any{"n": "<&>"}
	require.Equal(t, map[string]any{
		"transactionId": "a/b c", "partitionId": b.DB.PartitionID(t, q, "p"), "queuePath": q + "/p", "queue": q, "partition": "p",
		"namespace": "", "task": "", "queuePriority": 3.0, "status": "pending", "queueStatus": "pending",
		"busStatus": map[string]any{"consumedBy": 0.0, "totalGroups": 0.0}, "traceId": trace, "producerSub": nil, "payloadAvailable": true,
		"isEncrypted": false, "segment": map[string]any{"seq": 0.0, "frameIdx": 0.0}, "leaseExpiresAt": nil, "data": payload, "payload": payload,
	}, m)
}

func TestMessagesAreListedNewestFirstInPages(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	var want []string
	for i := range 7 {
		b.PushQueued(t, harness.Item{Queue: q, Partition: fmt.Sprint("p", i%3), Payload: 2 * i}, harness.Item{Queue: q, Partition: fmt.Sprint("p", i%3), Payload: 2*i + 1})
		want = append([]string{fmt.Sprint(2*i + 1), fmt.Sprint(2 * i)}, want...)
	}
	require.Equal(t, want, browse(t, b, q, "").payloads())
	require.Equal(t, want[3:8], browse(t, b, q, "&limit=5&offset=3").payloads())
	require.Empty(t, browse(t, b, q, "&offset=100").payloads())
	got := []string{}
	for after := ""; ; {
		page := browse(t, b, q, "&limit=4&after="+after)
		got = append(got, page.payloads()...)
		if after = page.Next; after == "" {
			break
		}
		b.PushQueued(t, harness.Item{Queue: q, Partition: "p0", Payload: "late"}) // changes no page
	}
	require.Equal(t, want, got)
}

func TestMessageFilters(t *testing.T) {
	t.Parallel()
	b, plain := shared(t)
	q := "ns" + plain + ".task" + plain + ".x"
	b.PushEach(t, q, "p", 2)
	b.PushEach(t, q, "r", 1)
	b.PushEach(t, plain, "p", 1)
	list := func(query string) int {
		a := b.Get(t, "/api/v1/messages?"+query)
		require.Equal(t, http.StatusOK, a.Status, a)
		return int(a.Object(t)["total"].(float64))
	}
	stamp := func(d time.Duration) string { return url.QueryEscape(time.Now().Add(d).UTC().Format(time.RFC3339Nano)) }
	for query, want := range map[string]int{
		"queue=" + q:                                  3,
		"queue=" + q + "&partition=p":                 2,
		"queue=" + q + "&partition=none":              0,
		"namespace=ns" + plain:                        3,
		"ns=ns" + plain:                               3,
		"namespace=other&ns=ns" + plain:               0,
		"task=task" + plain:                           3,
		"task=task" + plain + "&partition=r":          1,
		"queue=" + q + "&status=":                     3,
		"queue=" + q + "&status=pending":              3,
		"queue=" + q + "&status=completed":            0,
		"queue=" + q + "&from=" + stamp(-time.Minute): 3,
		"queue=" + q + "&from=" + stamp(time.Hour):    0,
		"queue=" + q + "&to=" + stamp(0):              3,
		"queue=" + q + "&from=2001-01-01T00:00:00Z&to=" + stamp(-2*time.Minute): 0,
		"queue=unknown" + q: 0,
	} {
		require.Equal(t, want, list(query), query)
	}
	b.DB.Exec(t, `UPDATE queen.log_txns SET created_at = created_at - interval '61 minutes' WHERE partition_id = $1::uuid`, b.DB.PartitionID(t, q, "r"))
	require.Equal(t, 2, list("queue="+q), "of the last hour")
	require.Equal(t, 3, list("queue="+q+"&from="+stamp(-2*time.Hour)))
}

func TestBadMessageParametersAreRefused(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	for query, want := range map[string]string{
		"limit=0":                               "limit must be a whole number from 1 to 1000",
		"limit=1001":                            "limit must be a whole number from 1 to 1000",
		"limit=ten":                             "limit must be a whole number from 1 to 1000",
		"offset=-1":                             "offset must be a whole number from 0 to 10000",
		"offset=10001":                          "offset must be a whole number from 0 to 10000",
		"from=yesterday":                        "from must be an RFC 3339 instant",
		"to=1":                                  "to must be an RFC 3339 instant",
		"status=lost":                           "status must be one of pending, processing, completed, dead_letter",
		"after=x":                               `after must be the "next" of an earlier page`,
		"after=x&offset=1":                      "after and offset exclude each other",
		"queue=" + url.QueryEscape(repeat(256)): "queue: longer than 255 characters",
		"after=%00":                             "after holds a NUL",
	} {
		a := b.Get(t, "/api/v1/messages?"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, "%s: %s", query, a)
		require.Equal(t, want, a.ErrorText(t), query)
	}
	for _, query := range []string{"limit=1", "limit=1000", "offset=0", "offset=10000"} {
		require.Equal(t, http.StatusOK, b.Get(t, "/api/v1/messages?"+query).Status, query)
	}
}

func TestStatusOfAMessage(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"leaseTime":300}`)
	ids := b.PushEach(t, q, "p", 4)
	statuses := func() (out []string) {
		for _, m := range browse(t, b, q, "").Messages {
			out = append(out, m.Status)
		}
		return out
	}
	require.Equal(t, []string{"pending", "pending", "pending", "pending"}, statuses())
	p := b.Pop(t, q, "batch=1&consumerGroup=g")
	require.Equal(t, []string{"processing", "processing", "processing", "processing"}, statuses(), "a lease is live on the partition")
	b.AckOK(t, "g", p.Acks("completed")...)
	require.Equal(t, []string{"pending", "pending", "pending", "completed"}, statuses())
	b.AckOK(t, "g", b.Pop(t, q, "batch=1&consumerGroup=g").Acks("dlq")...)
	require.Equal(t, []string{"pending", "pending", "dead_letter", "completed"}, statuses())
	for status, want := range map[string][]string{
		"pending": {"3", "2"}, "processing": {}, "completed": {"0"}, "dead_letter": {"1"},
	} {
		require.Equal(t, want, browse(t, b, q, "&status="+status).payloads(), status)
	}
	b.PopPartition(t, q, "p", "batch=1&consumerGroup=h&autoAck=true")
	b.PopPartition(t, q, "p", "batch=1&autoAck=true")
	require.Equal(t, []string{"pending", "pending", "dead_letter", "completed"}, statuses())
	page := browse(t, b, q, "")
	require.JSONEq(t, `{"hasQueueMode":true,"busGroupsCount":2,"type":"hybrid"}`, string(page.Mode))

	detail := b.Get(t, messagePath(p.PartitionID, ids[1])).Object(t)
	require.Equal(t, "dead_letter", detail["status"])
	require.Equal(t, "Retries exhausted", detail["errorMessage"])
	require.InDelta(t, 0, detail["retryCount"], 0)
}

// A long payload is shown by its beginning in a listing, and whole alone.
func TestLongPayloadsAreShownByTheirBeginning(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const bound = 32 << 10
	for i, size := range []int{bound - 2, bound - 1} { // and two quotes
		id := b.PushQueued(t, harness.Item{Queue: q, Partition: fmt.Sprint("p", i), Payload: repeat(size)})[0]
		m := browse(t, b, q, "&partition="+fmt.Sprint("p", i)).Messages[0]
		require.True(t, m.PayloadAvailable)
		require.Equal(t, id, *m.TransactionID)
		whole := `"` + repeat(size) + `"`
		if len(whole) <= bound {
			require.Equal(t, whole, string(m.Data))
			require.Equal(t, whole, string(m.Payload))
			require.Empty(t, m.PayloadPreview)
		} else {
			require.Equal(t, "null", string(m.Data))
			require.Equal(t, "null", string(m.Payload))
			require.Equal(t, len(whole), m.PayloadBytes)
			require.Equal(t, whole[:bound], m.PayloadPreview)
		}
		require.Equal(t, repeat(size), b.Get(t, messagePath(m.PartitionID, id)).Object(t)["payload"])
	}
}

func TestMessagesWithoutTheirSegmentOrSidecar(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ids := b.PushEach(t, q, "p", 3)
	pid := b.DB.PartitionID(t, q, "p")
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1::uuid AND base_offset = 0`, pid)
	page := browse(t, b, q, "")
	require.Equal(t, []string{"2", "1", "null"}, page.payloads())
	gone := page.Messages[2]
	require.False(t, gone.PayloadAvailable)
	require.Nil(t, gone.ID)
	require.Nil(t, gone.TransactionID)
	a := b.Get(t, messagePath(pid, ids[0]))
	require.Equal(t, http.StatusNotFound, a.Status, a)
	require.Equal(t, "Message not found", a.ErrorText(t))

	b.DB.Exec(t, `DELETE FROM queen.log_txns WHERE partition_id = $1::uuid AND base_offset < 2`, pid)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET txns_start = 2 WHERE id = $1::uuid`, pid)
	require.Equal(t, []string{"2"}, browse(t, b, q, "").payloads(), "what the sidecar forgot is not listed")
	a = b.Get(t, messagePath(pid, ids[1]))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.InDelta(t, 1, a.Object(t)["payload"], 0, "and is found all the same")

	b.DB.Exec(t, `UPDATE queen.log_segments SET blob = 'damaged' WHERE partition_id = $1::uuid AND base_offset = 2`, pid)
	a = b.Get(t, messagePath(pid, ids[2]))
	require.Equal(t, http.StatusInternalServerError, a.Status, a)
	require.Equal(t, "frame decode failed", a.ErrorText(t))
	page = browse(t, b, q, "")
	require.False(t, page.Messages[0].PayloadAvailable)
}

func TestMessageDetail(t *testing.T) {
	t.Parallel()
	b, plain := shared(t)
	q := "one.two." + plain
	b.Configure(t, q, `{"leaseTime":77,"retryLimit":4,"priority":2,"ttl":60,"retryDelay":5}`)
	b.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "same", Payload: "old"})
	b.DB.Exec(t, `UPDATE queen.queues SET dedup_window_seconds = 0 WHERE name = $1`, q)
	r := b.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "other", Payload: map[string]any{"a": 1}})[0]
	p := b.Pop(t, q, "batch=1&consumerGroup=g")
	pid := p.PartitionID
	a := b.Get(t, messagePath(pid, "other"))
	require.Equal(t, http.StatusOK, a.Status, a)
	m := a.Object(t)
	groups := m["consumerGroups"].([]any)
	require.Len(t, groups, 1)
	require.NotNil(t, groups[0].(map[string]any)["leaseExpiresAt"])
	delete(groups[0].(map[string]any), "leaseExpiresAt")
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`, m["createdAt"])
	delete(m, "createdAt")
	require.Equal(t, map[string]any{
		"id": r.MessageID, "transactionId": "other", "partitionId": pid, "queue": q, "partition": "p", "queuePath": q + "/p",
		"namespace": "one", "task": "two", "data": map[string]any{"a": 1.0}, "payload": map[string]any{"a": 1.0}, "traceId": nil, "producerSub": nil,
		"isEncrypted": false, "status": "processing", "errorMessage": nil, "retryCount": 0.0, "leaseExpiresAt": nil,
		"consumerGroups": []any{map[string]any{"name": "g", "group": "g", "consumed": false}},
		"mode":           map[string]any{"hasQueueMode": false, "busGroupsCount": 1.0, "type": "bus"},
		"queueConfig":    map[string]any{"leaseTime": 77.0, "retryLimit": 4.0, "priority": 2.0, "ttl": 60.0, "retryDelay": 5.0},
	}, m)

	for _, path := range []string{messagePath(pid, "never"), messagePath(zeroUUID, "other"), messagePath("nonsense", "other")} {
		a := b.Get(t, path)
		require.Equal(t, http.StatusNotFound, a.Status, "%s: %s", path, a)
		require.Equal(t, "Message not found", a.ErrorText(t))
	}
	b.DB.Exec(t, `UPDATE queen.queues SET tenant_id = gen_random_uuid() WHERE name = $1`, q)
	require.Equal(t, http.StatusNotFound, b.Get(t, messagePath(pid, "other")).Status, "of another tenant")
	require.Empty(t, browse(t, b, q, "").Messages)
	a = b.Get(t, "/api/v1/messages/other")
	require.Equal(t, http.StatusNotFound, a.Status)
	require.JSONEq(t, `{"error":"Not Found","code":"no_such_route"}`, string(a.Body))
}

func TestHeadOfMessages(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	a, err := b.Call(t.Context(), http.MethodHead, "/api/v1/messages?queue="+q, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, a.Status)
	require.Empty(t, strings.TrimSpace(string(a.Body)))
}
