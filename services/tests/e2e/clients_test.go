package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// The tests of this file send what the existing clients send, byte for byte
// where that matters, and read only what they read.

// asJS and asGo are the headers of the two clients, on every request.
func asJS() []string {
	return []string{"Content-Type", "application/json", "Accept-Encoding", "gzip, deflate"}
}

func asGo() []string {
	return []string{"Content-Type", "application/json", "Accept", "application/json", "Accept-Encoding", "gzip", "Authorization", "Bearer x.y.z"}
}

func send(t *testing.T, b *harness.Broker, header []string, method, path, body string) harness.Answer {
	t.Helper()
	var raw []byte
	if body != "" {
		raw = []byte(body)
	}
	a, err := b.Call(t.Context(), method, path, raw, header...)
	require.NoError(t, err)
	return a
}

func TestJavaScriptClient(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	call := func(method, path, body string) harness.Answer { return send(t, b, asJS(), method, path, body) }

	create := fmt.Sprintf(`{"queue":%q,"namespace":null,"task":null,"options":{"leaseTime":300,"retryLimit":3,"priority":0,"delayedProcessing":0,
		"windowBuffer":0,"maxSize":0,"retentionSeconds":0,"completedRetentionSeconds":0,"encryptionEnabled":false}}`, q)
	for range 3 { // the suites create the same queue again and again
		a := call("POST", "/api/v1/configure", create)
		require.Equal(t, http.StatusOK, a.Status, a)
		require.Equal(t, true, a.Object(t)["configured"])
	}

	a := call("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%[1]q,"partition":"Default","payload":{"n":1},"transactionId":"019a0000-0000-7000-8000-000000000001"},
		{"queue":%[1]q,"partition":"Default","payload":null,"transactionId":"019a0000-0000-7000-8000-000000000002","traceId":"4fdc86d7-7d2c-4c43-92d9-1a2f1d3c8a10"}]}`, q))
	require.Equal(t, http.StatusCreated, a.Status, a)
	require.Len(t, a.Objects(t), 2)

	pop := fmt.Sprintf("/api/v1/pop/queue/%s?batch=10&wait=true&timeout=30000&consumerGroup=js-group&subscriptionMode=from_beginning", q)
	a = call("GET", pop, "")
	require.Equal(t, http.StatusOK, a.Status, a)
	require.True(t, strings.HasPrefix(a.Header.Get("Content-Type"), "application/json"))
	messages := a.Object(t)["messages"].([]any)
	require.Len(t, messages, 2)
	var acks []string
	for _, message := range messages {
		m := message.(map[string]any)
		require.NotEmpty(t, m["partitionId"])
		require.Equal(t, messages[0].(map[string]any)["leaseId"], m["leaseId"])
		acks = append(acks, fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"completed","leaseId":%q,"error":null}`,
			m["transactionId"], m["partitionId"], m["leaseId"]))
	}

	lease := messages[0].(map[string]any)["leaseId"].(string)
	a = call("POST", "/api/v1/lease/"+lease+"/extend", `{}`)
	require.Equal(t, true, a.Object(t)["success"], a)
	require.IsType(t, "", a.Object(t)["newExpiresAt"])

	a = call("POST", "/api/v1/ack/batch", `{"acknowledgments":[`+strings.Join(acks, ",")+`],"consumerGroup":"js-group"}`)
	require.Equal(t, http.StatusOK, a.Status, a)
	for _, r := range a.Objects(t) {
		require.Equal(t, true, r["success"])
		require.Nil(t, r["error"])
	}

	a = call("GET", fmt.Sprintf("/api/v1/dlq?queue=%s&limit=100&offset=0&from=2020-01-01T00%%3A00%%3A00.000Z", q), "")
	require.JSONEq(t, `[]`, mustJSON(t, a.Object(t)["messages"]))
	require.InDelta(t, 0, a.Object(t)["total"], 0)

	a = call("DELETE", "/api/v1/resources/queues/"+q, "")
	require.Equal(t, true, a.Object(t)["deleted"], a)
}

func TestJavaScriptSingleAckAndBatchOfOne(t *testing.T) {
	t.Parallel()
	b, _, p := leased(t, 2, "")
	m := p.Messages[0]
	a := send(t, b, asJS(), "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"completed","error":null,"consumerGroup":null,"leaseId":%q}`,
		m.TransactionID, m.PartitionID, m.LeaseID))
	require.Len(t, a.Objects(t), 1)
	require.Equal(t, true, a.Objects(t)[0]["success"])
	m = p.Messages[1]
	a = send(t, b, asJS(), "POST", "/api/v1/ack/batch", fmt.Sprintf(`{"acknowledgments":[{"transactionId":%q,"partitionId":%q,"status":"failed","leaseId":%q,"error":"Error: boom\n    at <anonymous>"}],"consumerGroup":null}`,
		m.TransactionID, m.PartitionID, m.LeaseID))
	require.Len(t, a.Objects(t), 1)
	require.Equal(t, true, a.Objects(t)[0]["success"])
}

func TestJavaScriptAutopilotOmitsTheKnobs(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "p1", 3)
	b.PushTogether(t, q, "p2", 3)
	a := send(t, b, asJS(), "GET", "/api/v1/pop/queue/"+q+"?wait=true&timeout=30000&consumerGroup=g&autopilot=true", "")
	require.Len(t, a.Object(t)["messages"], 3, "200 messages, one partition")
	require.NotContains(t, a.Object(t), "autopilot")
}

func TestGoClient(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	call := func(method, path, body string) harness.Answer { return send(t, b, asGo(), method, path, body) }

	a := call("POST", "/api/v1/configure", fmt.Sprintf(`{"options":{"leaseTime":30,"retryLimit":1,"dlqAfterMaxRetries":true},"queue":%q}`, q))
	require.Equal(t, http.StatusOK, a.Status, a)
	a = call("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%q,"options":{}}`, q+"-raw"))
	require.Equal(t, http.StatusOK, a.Status, a)

	// Its encoder escapes markup inside names and payloads alike.
	a = call("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"partition":"x y/z \u0026 co","payload":{"html":"\u003cb\u003e"},"queue":%q,"transactionId":"t\u003c1\u003e"}]}`, q))
	require.Equal(t, http.StatusCreated, a.Status, a)
	require.Equal(t, "t<1>", a.Objects(t)[0]["transaction_id"])

	a = call("GET", "/api/v1/pop/queue/"+q+"/partition/x%20y%2Fz%20&%20co?batch=1&wait=false&timeout=30000&consumerGroup=go&autoAck=false", "")
	require.Equal(t, http.StatusOK, a.Status, a)
	m := a.Object(t)["messages"].([]any)[0].(map[string]any)
	require.Equal(t, map[string]any{"html": "<b>"}, m["data"])
	at, err := time.Parse(time.RFC3339, m["createdAt"].(string))
	require.NoError(t, err)
	require.Equal(t, time.UTC, at.Location())

	nack := fmt.Sprintf(`{"consumerGroup":"go","error":"handler \u003cfailed\u003e","leaseId":%q,"partitionId":%q,"status":"failed","transactionId":"t\u003c1\u003e"}`,
		m["leaseId"], m["partitionId"])
	a = call("POST", "/api/v1/ack", nack)
	require.Equal(t, true, a.Objects(t)[0]["success"], a)
	p := b.PopPartition(t, q, "x y/z & co", "consumerGroup=go")
	a = call("POST", "/api/v1/ack", strings.Replace(nack, m["leaseId"].(string), p.LeaseID, 1))
	require.Equal(t, true, a.Objects(t)[0]["dlq"], "two failures with a limit of one")
	rows := b.DLQ(t, q, "")
	require.Len(t, rows, 1)
	require.Contains(t, rows[0].ErrorMessage, "handler <failed>")
	require.JSONEq(t, `{"html":"<b>"}`, string(rows[0].Data))

	a = call("DELETE", "/api/v1/resources/queues/"+q, "")
	require.Equal(t, http.StatusOK, a.Status, a)
	a = call("GET", "/api/v1/pop/queue/"+q+"?batch=1&wait=false&timeout=30000", "")
	require.Equal(t, http.StatusNoContent, a.Status, a)
	require.Empty(t, a.Body)
}

func TestClientTransaction(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "p", 2)
	p := b.Pop(t, q, "batch=2&consumerGroup=g")
	ackOf := func(m harness.Message, id string) string {
		return fmt.Sprintf(`{"type":"ack","transactionId":%q,"partitionId":%q,"status":"completed","consumerGroup":"g"}`, id, m.PartitionID)
	}
	bundle := func(ids ...string) string {
		ops := []string{fmt.Sprintf(`{"type":"push","items":[{"queue":%q,"payload":{"from":1},"transactionId":"019a0000-0000-7000-8000-00000000000a"}]}`, q+"-to")}
		for _, id := range ids {
			ops = append(ops, ackOf(p.Messages[0], id))
		}
		return `{"operations":[` + strings.Join(ops, ",") + `],"requiredLeases":["` + p.LeaseID + `"]}`
	}
	a := send(t, b, asJS(), "POST", "/api/v1/transaction", bundle(p.Messages[0].TransactionID, "never pushed"))
	require.Equal(t, http.StatusOK, a.Status)
	require.Equal(t, false, a.Object(t)["success"], a)
	require.Contains(t, a.Object(t)["error"], "rolled back")
	b.RequireNone(t, harness.PopPath(q+"-to", ""))

	a = send(t, b, asGo(), "POST", "/api/v1/transaction", bundle(p.Messages[0].TransactionID, p.Messages[1].TransactionID))
	require.Equal(t, true, a.Object(t)["success"], a)
	require.Equal(t, []string{`{"from":1}`}, b.Pop(t, q+"-to", "").Payloads())
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))

	b.DB.ExpireLeases(t, q)
	a = send(t, b, asJS(), "POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"`+q+`-to","payload":1,"transactionId":"other"}]}],"requiredLeases":[]}`)
	require.Equal(t, true, a.Object(t)["success"], a)
}

// TestConsumeLoopDrainsFullBatches is the clients' load shape: they end only if
// every pop of a filled partition returns exactly the batch.
func TestConsumeLoopDrainsFullBatches(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const total, workers, batch, pushers = 10000, 10, 100, 4
	var wg sync.WaitGroup
	for w := range pushers { // requests of several sizes, so that segments are uneven
		wg.Go(func() {
			sizes := []int{1, 37, 212, 250}
			for sent := 0; sent < total/pushers; {
				n := min(sizes[(sent+w)%len(sizes)], total/pushers-sent)
				items := make([]harness.Item, n)
				for i := range items {
					items[i] = harness.Item{Queue: q, Payload: w*total + sent + i}
				}
				if _, err := b.TryPush(t.Context(), items...); err != nil {
					t.Error(err)
					return
				}
				sent += n
			}
		})
	}
	wg.Wait()

	var mu sync.Mutex
	var got []string
	for range workers {
		wg.Go(func() {
			for {
				mu.Lock()
				done := len(got) >= total
				mu.Unlock()
				if done {
					return
				}
				p, err := b.TryPop(t.Context(), harness.PopPath(q, "batch=100&wait=true&timeout=2000"))
				if err != nil {
					t.Error(err)
					return
				}
				if len(p.Messages) == 0 {
					continue
				}
				if len(p.Messages) != batch {
					t.Errorf("a pop returned %d messages", len(p.Messages))
				}
				mu.Lock()
				got = append(got, p.Payloads()...)
				mu.Unlock()
				if _, err := b.TryAck(t.Context(), "", p.Acks("completed")...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, got, total)
	last := map[int]int{} // of each pusher
	for _, text := range got {
		var n int
		_, err := fmt.Sscan(text, &n)
		require.NoError(t, err)
		w := n / total
		require.Equal(t, w*total+last[w], n, "in order, none twice")
		last[w]++
	}
}

func TestConsumeLoopNacksAWholeBatchUntilItSucceeds(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"retryLimit":3}`)
	b.PushTogether(t, q, "Default", 100)
	var seen [][]string
	for attempt := range 3 {
		p := b.Pop(t, q, "batch=100&wait=true&timeout=30000")
		seen = append(seen, p.Payloads())
		status := "failed"
		if attempt == 2 {
			status = "completed"
		}
		b.AckOK(t, "", p.Acks(status)...)
	}
	require.Equal(t, [][]string{numbers(0, 100), numbers(0, 100), numbers(0, 100)}, seen)
	require.Empty(t, b.DLQ(t, q, ""))
}

func TestConsumeLoopInEachMode(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "Default", 20)
	var handled []string
	for failures := 0; len(handled) < 20; {
		p := b.Pop(t, q, "batch=7&wait=true&timeout=30000&consumerGroup=each")
		require.NotEmpty(t, p.Messages)
		for i, m := range p.Messages {
			if i == 3 && failures < 3 { // drop the rest of the batch after a failure
				failures++
				a := m.Ack("failed")
				a.ConsumerGroup = "each"
				require.True(t, b.AckOne(t, a).Success)
				break
			}
			a := m.Ack("completed")
			a.ConsumerGroup = "each"
			require.True(t, b.AckOne(t, a).Success)
			handled = append(handled, string(m.Data))
		}
	}
	require.Equal(t, numbers(0, 20), handled)
}

func TestConsumersOfOnePartitionSeeGrowingMessages(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "Default", 200)
	var mu sync.Mutex
	var got []string
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for {
				p, err := b.TryPop(t.Context(), harness.PopPath(q, "batch=3&wait=true&timeout=1500"))
				if err != nil || len(p.Messages) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				got = append(got, p.Payloads()...)
				mu.Unlock()
				if _, err := b.TryAck(t.Context(), "", p.Acks("completed")...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, numbers(0, 200), got)
}

func TestManualAcksOfAThousand(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const total = 10000
	for range total / 1000 {
		b.PushTogether(t, q, "Default", 1000)
	}
	var got []string
	for len(got) < total {
		p := b.Pop(t, q, "batch=1000&wait=true&timeout=30000")
		require.Len(t, p.Messages, 1000)
		got = append(got, p.Payloads()...)
		b.AckOK(t, "", p.Acks("completed")...)
	}
	require.Equal(t, slices.Repeat(numbers(0, 1000), total/1000), got)
	b.RequireNone(t, harness.PopPath(q, "batch=1000"))
}

func TestLateAckDoesNotWedgeThePartition(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"leaseTime":1}`)
	b.PushEach(t, q, "", 2)
	p := b.Pop(t, q, "batch=2")
	b.DB.ExpireLeases(t, q) // the handler was too slow
	for _, r := range b.Ack(t, "", p.Acks("completed")...) {
		require.False(t, r.Success)
	}
	for _, r := range b.Ack(t, "", p.Acks("failed")...) { // what a client does next
		require.False(t, r.Success)
	}
	again := b.Pop(t, q, "batch=2&wait=true&timeout=20000")
	require.Equal(t, numbers(0, 2), again.Payloads())
	b.AckOK(t, "", again.Acks("completed")...)
}

func TestFiftyRequestsAtOnceOfOneClient(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for range 4 {
				if _, err := b.TryPush(t.Context(), harness.Item{Queue: q, Partition: fmt.Sprint(i), Payload: i}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, drain(t, b, harness.PopPath(q, "batch=1000&partitions=0")), 200)
}
