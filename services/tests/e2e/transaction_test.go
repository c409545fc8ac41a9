package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// tx is a bundle of operations.
func tx(ops ...any) harness.Transaction { return harness.Transaction{Operations: ops} }

func push(items ...harness.Item) any { return harness.PushOp(items...) }

func ack(a harness.Ack) any { return harness.AckOp(a) }

func TestTransactionAnswersTheDocumentedShape(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, "")
	m := p.Messages[0]
	a := b.Post(t, "/api/v1/transaction", fmt.Sprintf(`{"operations":[
		{"type":"push","items":[{"queue":%[1]q,"payload":{"n":1},"transactionId":"t-1"},{"queue":%[1]q,"partition":"x","payload":null}]},
		{"type":"ack","transactionId":%[2]q,"partitionId":%[3]q,"leaseId":%[4]q},
		{"type":"push","queue":%[1]q,"data":[1],"transactionId":"t-1"}]}`, q+"-to", m.TransactionID, m.PartitionID, m.LeaseID))
	require.Equal(t, http.StatusOK, a.Status, a)
	top := a.Object(t)
	require.Equal(t, true, top["success"], a)
	requireUUIDv7(t, top["transactionId"].(string))
	require.NotContains(t, top, "error")
	results := top["results"].([]any)
	require.Len(t, results, 4)
	first, second := results[0].(map[string]any), results[1].(map[string]any)
	id, minted := first["messageId"].(string), second["messageId"].(string)
	requireUUIDv7(t, id)
	requireUUIDv7(t, minted)
	require.Equal(t, []any{
		map[string]any{"index": 0.0, "type": "push", "success": true, "transactionId": "t-1", "messageId": id, "queueName": q + "-to"},
		map[string]any{"index": 1.0, "type": "push", "success": true, "transactionId": minted, "messageId": minted, "queueName": q + "-to"},
		map[string]any{"index": 2.0, "type": "ack", "success": true, "transactionId": m.TransactionID, "error": nil, "dlq": false},
		map[string]any{"index": 3.0, "type": "push", "success": true, "transactionId": "t-1", "messageId": id, "queueName": q + "-to", "duplicate": true},
	}, results)
	require.ElementsMatch(t, []string{`{"n":1}`, `null`}, b.Pop(t, q+"-to", "partitions=0").Payloads())
	require.Equal(t, int64(0), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestTransactionPushForms(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ op, payload, partition string }{
		"items":                         {`{"type":"push","items":[{"queue":"Q","payload":1}]}`, `1`, "Default"},
		"flat":                          {`{"type":"push","queue":"Q","payload":1}`, `1`, "Default"},
		"flat with a partition":         {`{"type":"push","queue":"Q","partition":"x","payload":1}`, `1`, "x"},
		"data for payload":              {`{"type":"push","items":[{"queue":"Q","data":{"a":[]}}]}`, `{"a":[]}`, "Default"},
		"payload wins over data":        {`{"type":"push","items":[{"queue":"Q","data":1,"payload":2}]}`, `2`, "Default"},
		"null payload":                  {`{"type":"push","items":[{"queue":"Q","payload":null}]}`, `null`, "Default"},
		"neither":                       {`{"type":"push","items":[{"queue":"Q"}]}`, `{}`, "Default"},
		"empty partition is absent":     {`{"type":"push","items":[{"queue":"Q","partition":"","payload":1}]}`, `1`, "Default"},
		"null members are absent":       {`{"type":"push","items":[{"queue":"Q","partition":null,"transactionId":null,"traceId":null,"payload":1}]}`, `1`, "Default"},
		"payload bytes are kept":        {`{"type":"push","items":[{"queue":"Q","payload":{ "b" : 1.50, "b":2 }}]}`, `{ "b" : 1.50, "b":2 }`, "Default"},
		"unknown members do not matter": {`{"type":"push","when":1,"items":[{"queue":"Q","payload":1,"producerSub":"x"}]}`, `1`, "Default"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			answer := b.TransactRaw(t, `{"operations":[`+strings.ReplaceAll(c.op, `"Q"`, `"`+q+`"`)+`]}`)
			require.True(t, answer.Success, "%s", answer.Answer)
			p := b.Pop(t, q, "")
			require.Equal(t, []string{c.payload}, p.Payloads())
			require.Equal(t, c.partition, p.Partition)
			require.Nil(t, p.Messages[0].ProducerSub)
		})
	}
}

func TestTransactionStoresATraceID(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const trace = "2f1b2c3d-0000-4000-8000-000000000001"
	answer := b.TransactRaw(t, fmt.Sprintf(`{"operations":[{"type":"push","items":[
		{"queue":%[1]q,"payload":1,"traceId":%[2]q},{"queue":%[1]q,"payload":2}]}]}`, q, trace))
	require.True(t, answer.Success, "%s", answer.Answer)
	p := b.Pop(t, q, "")
	require.Equal(t, trace, *p.Messages[0].TraceID)
	require.Nil(t, p.Messages[1].TraceID)
}

func TestTransactionOfAnEmptyPushCommitsNothing(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	answer := b.TransactRaw(t, `{"operations":[{"type":"push","items":[]}]}`)
	require.True(t, answer.Success, "%s", answer.Answer)
	require.Empty(t, answer.Results)
	require.Contains(t, string(answer.Body), `"results":[]`)
}

func TestTransactionMovesMessagesBetweenQueues(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	big := make([]map[string]any, 1000)
	for i := range big {
		big[i] = map[string]any{"id": i, "name": fmt.Sprintf("item-%d", i)}
	}
	b.PushTogether(t, q, "p", 3)
	p := b.Pop(t, q, "batch=3&consumerGroup=g")
	var ops []any
	for _, a := range p.Acks("completed") {
		a.ConsumerGroup, a.LeaseID = "g", ""
		ops = append(ops, ack(a))
	}
	ops = append(ops, push(harness.Item{Queue: q + "-a", Payload: big}),
		push(harness.Item{Queue: q + "-b", Partition: "x", Payload: 1}, harness.Item{Queue: q + "-b", Partition: "y", Payload: 2},
			harness.Item{Queue: q + "-b", Partition: "x", Payload: 3}))
	b.Commit(t, harness.Transaction{Operations: ops, RequiredLeases: []string{p.LeaseID}})

	b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
	require.Equal(t, numbers(0, 3), b.Pop(t, q, "consumerGroup=later&subscriptionMode=all").Payloads(), "that group only")
	require.Len(t, b.Pop(t, q+"-a", "").Messages, 1)
	require.Equal(t, []string{"1", "3"}, b.PopPartition(t, q+"-b", "x", "").Payloads())
	require.Equal(t, []string{"2"}, b.PopPartition(t, q+"-b", "y", "").Payloads())
	require.Nil(t, b.DB.Cursor(t, q, "p", "g").Worker, "the whole batch was acknowledged")
}

func TestTransactionAcksOfSeveralQueuesAndGroups(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	var ops []any
	for i, group := range []string{"", "g1", "g2"} {
		name := fmt.Sprintf("%s-%d", q, i)
		b.PushEach(t, name, "p", 1)
		p := b.Pop(t, name, "consumerGroup="+group)
		a := p.Messages[0].Ack("completed")
		a.ConsumerGroup = group
		ops = append(ops, ack(a))
	}
	b.Commit(t, tx(ops...))
	for i, group := range []string{"", "g1", "g2"} {
		b.RequireNone(t, harness.PopPath(fmt.Sprintf("%s-%d", q, i), "consumerGroup="+group))
	}
}

func TestTransactionAcksEachMessageOfABatchInAnyOrder(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 5, "")
	acks := p.Acks("completed")
	b.Commit(t, tx(ack(acks[4]), ack(acks[0]), push(harness.Item{Queue: q + "-to", Payload: 1}), ack(acks[2]), ack(acks[1]), ack(acks[3])))
	row := b.DB.Cursor(t, q, "p", harness.QueueMode)
	require.Equal(t, int64(4), row.Committed)
	require.Nil(t, row.Worker)
}

func TestTransactionAckOfTheMiddleKeepsTheLease(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 3, "")
	b.Commit(t, tx(ack(p.Messages[1].Ack("completed"))))
	row := b.DB.Cursor(t, q, "p", harness.QueueMode)
	require.Equal(t, int64(1), row.Committed)
	require.NotNil(t, row.Worker)
	b.DB.ExpireLeases(t, q)
	require.Equal(t, numbers(2, 3), b.Pop(t, q, "").Payloads())
}

func TestTransactionChain(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	name := func(i int) string { return fmt.Sprintf("%s-%d", q, i) }
	b.PushQueued(t, harness.Item{Queue: name(0), Payload: "x"})
	for i := range 3 {
		p := b.Pop(t, name(i), "")
		require.Equal(t, []string{`"x"`}, p.Payloads())
		b.Commit(t, tx(ack(p.Messages[0].Ack("completed")), push(harness.Item{Queue: name(i + 1), Payload: p.Messages[0].Data})))
		b.RequireNone(t, harness.PopPath(name(i), ""))
	}
	require.Equal(t, []string{`"x"`}, b.Pop(t, name(3), "").Payloads())
}

// TestTransactionRollsBack runs a bundle with one bad part beside a push and a
// good ack, and checks that nothing at all has happened.
func TestTransactionRollsBack(t *testing.T) {
	t.Parallel()
	type world struct {
		b *harness.Broker
		q string
		p harness.Popped
	}
	cases := map[string]struct {
		bad    func(t *testing.T, w world) (any, []string)
		reason string
		text   func(w world) string // exact; nil: only what clients look for
	}{
		"duplicate of history": {func(t *testing.T, w world) (any, []string) {
			w.b.PushQueued(t, harness.Item{Queue: w.q + "-old", Partition: "lane", TransactionID: "seen", Payload: 0})
			return push(harness.Item{Queue: w.q + "-old", Partition: "lane", TransactionID: "seen", Payload: 1}), nil
		}, "duplicate", func(w world) string {
			return `QDUP duplicate messages in queue "` + w.q + `-old" partition "lane"; transaction rolled back`
		}},
		"ack of an unknown id": {func(_ *testing.T, w world) (any, []string) {
			a := w.p.Messages[1].Ack("completed")
			a.TransactionID = "ghost"
			return ack(a), nil
		}, "ack_rejected", func(world) string { return "QTXN ack references unknown transactionId; transaction rolled back" }},
		"nack of an unknown id": {func(_ *testing.T, w world) (any, []string) {
			a := w.p.Messages[1].Ack("failed")
			a.TransactionID = "ghost"
			return ack(a), nil
		}, "ack_rejected", func(world) string { return "QTXN ack references unknown transactionId; transaction rolled back" }},
		"ack above the leased batch": {func(t *testing.T, w world) (any, []string) {
			a := w.p.Messages[1].Ack("completed")
			a.TransactionID = w.b.PushEach(t, w.q, "p", 1)[0]
			return ack(a), nil
		}, "ack_rejected", func(world) string { return "QTXN ack references unknown transactionId; transaction rolled back" }},
		"wrong lease": {func(_ *testing.T, w world) (any, []string) {
			a := w.p.Messages[1].Ack("completed")
			a.LeaseID = "nonsense"
			return ack(a), nil
		}, "ack_rejected", nil},
		"ack of a group that never popped": {func(_ *testing.T, w world) (any, []string) {
			a := w.p.Messages[1].Ack("completed")
			a.ConsumerGroup, a.LeaseID = "stranger", ""
			return ack(a), nil
		}, "ack_rejected", nil},
		"ack of an unknown partition": {func(_ *testing.T, w world) (any, []string) {
			return ack(harness.Ack{TransactionID: "x", PartitionID: "019a0000-0000-7000-8000-000000000000", Status: "completed"}), nil
		}, "ack_rejected", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, p := leased(t, 2, "")
			w := world{b, q, p}
			bad, leases := c.bad(t, w)
			good := []any{push(harness.Item{Queue: q + "-to", Payload: 1}), ack(p.Messages[0].Ack("completed"))}
			answer := b.Refuse(t, c.reason, harness.Transaction{Operations: append(good, bad), RequiredLeases: leases})
			require.Contains(t, answer.Error, "rolled back")
			if c.text != nil {
				require.Equal(t, c.text(w), answer.Error)
			}
			require.False(t, b.DB.HasQueue(t, q+"-to"), "not even the queue is left behind")
			row := b.DB.Cursor(t, q, "p", harness.QueueMode)
			require.Equal(t, int64(-1), row.Committed)
			require.Equal(t, p.LeaseID, *row.Worker)
			b.DB.ExpireLeases(t, q)
			require.Equal(t, numbers(0, 2), b.Pop(t, q, "batch=2").Payloads())
		})
	}
}

func TestTransactionOfAnExpiredLease(t *testing.T) {
	t.Parallel()
	t.Run("named by the operation", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 1, "")
		b.DB.ExpireLeases(t, q)
		b.Refuse(t, "ack_rejected", tx(ack(p.Messages[0].Ack("completed"))))
		again := b.Pop(t, q, "")
		b.Refuse(t, "ack_rejected", tx(ack(p.Messages[0].Ack("completed"))))
		require.Equal(t, again.LeaseID, *b.DB.Cursor(t, q, "p", harness.QueueMode).Worker)
		b.Commit(t, tx(ack(again.Messages[0].Ack("completed"))))
	})
	t.Run("named by nobody", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 1, "")
		b.DB.ExpireLeases(t, q)
		a := p.Messages[0].Ack("completed")
		a.LeaseID = ""
		b.Commit(t, tx(ack(a)))
		b.RequireNone(t, harness.PopPath(q, ""))
	})
}

func TestRequiredLeasesCoverAcksWithoutOne(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p1", 1)
	b.PushEach(t, q, "p2", 1)
	first, second := b.Pop(t, q, ""), b.Pop(t, q, "")
	var ops []any
	for _, p := range []harness.Popped{first, second} {
		a := p.Messages[0].Ack("completed")
		a.LeaseID = ""
		ops = append(ops, ack(a))
	}
	b.Commit(t, harness.Transaction{Operations: ops, RequiredLeases: []string{first.LeaseID, second.LeaseID}})
	b.RequireNone(t, harness.PopPath(q, "partitions=0"))
}

func TestTransactionAckBelowTheCursorIsNoFailure(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 3, "")
	b.AckOK(t, "", p.Messages[1].Ack("completed"))
	answer := b.Commit(t, tx(ack(p.Messages[0].Ack("completed")), push(harness.Item{Queue: q + "-to", Payload: 1})))
	require.Len(t, answer.Results, 2)
	answer = b.Commit(t, tx(ack(p.Messages[0].Ack("failed"))))
	require.False(t, answer.Results[0].DLQ)
	row := b.DB.Cursor(t, q, "p", harness.QueueMode)
	require.Equal(t, []any{int64(1), 0, true}, []any{row.Committed, row.RetryCount, row.Worker != nil})
	require.Len(t, b.Pop(t, q+"-to", "").Messages, 1)
}

func TestTransactionRetryOfACommittedBundleIsADuplicate(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, "")
	bundle := tx(ack(p.Messages[0].Ack("completed")), push(harness.Item{Queue: q + "-to", TransactionID: "once", Payload: 1}))
	b.Commit(t, bundle)
	b.Refuse(t, "duplicate", bundle)
	require.Len(t, b.Pop(t, q+"-to", "").Messages, 1)
}
