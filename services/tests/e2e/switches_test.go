package e2e_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestSwitchesChangeNoAnswer runs one scenario of every kind against a broker
// with each accelerator off, and with all of them off. The whole suite runs that
// way in `make test-engine`.
func TestSwitchesChangeNoAnswer(t *testing.T) {
	t.Parallel()
	settings := map[string][]string{"everything off": switches()}
	for _, s := range switches() {
		settings[s] = []string{s}
	}
	for name, env := range settings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := harness.StartOne(t, env...)
			for scenario, run := range scenarios() {
				t.Run(scenario, func(t *testing.T) {
					t.Parallel()
					run(t, b, queueName(t))
				})
			}
		})
	}
}

type scenario = func(t *testing.T, b *harness.Broker, q string)

func scenarios() map[string]scenario {
	return map[string]scenario{
		"wildcard pop and full ack":        fullAckScenario,
		"pop of one partition, part acked": partialAckScenario,
		"discovery and auto-ack":           discoveryScenario,
		"nacks":                            nackScenario,
		"groups":                           groupScenario,
		"duplicates":                       duplicateScenario,
		"transaction":                      transactionScenario,
		"long poll":                        longPollScenario,
		"lease runs out":                   leaseScenario,
		"window buffer":                    windowScenario,
		"delayed processing":               delayScenario,
	}
}

func fullAckScenario(t *testing.T, b *harness.Broker, q string) {
	ids := map[string][]string{}
	for _, lane := range lanes(4) {
		ids[lane] = b.PushEach(t, q, lane, 3)
	}
	p := b.Pop(t, q, "partitions=4&batch=100")
	require.Len(t, p.Messages, 12)
	require.Equal(t, 4, p.PartitionsClaimed)
	for _, lane := range lanes(4) {
		require.Equal(t, ids[lane], inLane(p, lane))
	}
	for _, r := range b.AckOK(t, "", p.Acks("completed")...) {
		require.True(t, r.LeaseReleased)
		require.False(t, r.Noop)
	}
	b.RequireNone(t, harness.PopPath(q, "partitions=4"))
	for _, a := range p.Acks("completed") {
		a.LeaseID = ""
		require.True(t, b.AckOK(t, "", a)[0].Noop, "acknowledged again")
	}
}

// inLane are the transaction ids that a pop delivered of one lane.
func inLane(p harness.Popped, lane string) []string {
	var out []string
	for _, m := range p.Messages {
		if m.Partition == lane {
			out = append(out, m.TransactionID)
		}
	}
	return out
}

func partialAckScenario(t *testing.T, b *harness.Broker, q string) {
	b.PushTogether(t, q, "p", 6)
	p := b.PopPartition(t, q, "p", "batch=5")
	require.Equal(t, numbers(0, 5), p.Payloads())
	for _, r := range b.AckOK(t, "", p.Acks("completed")[:2]...) {
		require.False(t, r.LeaseReleased)
	}
	b.RequireNone(t, harness.PopPartitionPath(q, "p", ""))
	require.True(t, b.AckOK(t, "", p.Acks("completed")[4])[0].LeaseReleased, "the last one stands for all before it")
	require.Equal(t, numbers(5, 6), b.PopPartition(t, q, "p", "").Payloads())
	require.Equal(t, int64(5), b.DB.Cursor(t, q, "p", harness.QueueMode).TotalConsumed)
}

func discoveryScenario(t *testing.T, b *harness.Broker, q string) {
	b.Configure(t, q, `{"namespace":"`+q+`"}`)
	b.PushEach(t, q, "", 2)
	require.Equal(t, numbers(0, 2), b.Discover(t, "namespace="+q+"&autoAck=true").Payloads())
	b.RequireNone(t, "/api/v1/pop?namespace="+q)
	b.RequireNone(t, harness.PopPath(q, ""))
}

func nackScenario(t *testing.T, b *harness.Broker, q string) {
	b.Configure(t, q, `{"retryLimit":1}`)
	b.PushTogether(t, q, "p", 4)
	p := b.Pop(t, q, "batch=2")
	b.AckOK(t, "", p.Messages[0].Ack("completed"), p.Messages[1].Ack("retry"))
	p = b.Pop(t, q, "batch=2")
	require.Equal(t, numbers(1, 3), p.Payloads())
	b.AckOK(t, "", p.Messages[0].Ack("failed"))
	p = b.Pop(t, q, "batch=2")
	require.Equal(t, numbers(1, 3), p.Payloads())
	require.Equal(t, 2, p.Messages[0].DeliveryAttempt, "the second time that a batch begins here, after a retry moved the cursor")
	require.True(t, b.AckOK(t, "", p.Messages[0].Ack("failed"))[0].DLQ)
	p = b.Pop(t, q, "batch=1")
	require.Equal(t, numbers(2, 3), p.Payloads())
	require.True(t, b.AckOK(t, "", p.Messages[0].Ack("dlq"))[0].DLQ)
	require.Equal(t, []string{"2", "1"}, deadPayloads(b.DLQ(t, q, "")))
	require.Equal(t, numbers(3, 4), b.Pop(t, q, "").Payloads())
}

func groupScenario(t *testing.T, b *harness.Broker, q string) {
	b.PushEach(t, q, "", 2)
	b.RequireNone(t, harness.PopPath(q, "consumerGroup=new&subscriptionMode=new"))
	b.PushQueued(t, harness.Item{Queue: q, Payload: 2})
	for group, from := range map[string]int{"all": 0, "new": 2} {
		p := b.Pop(t, q, "consumerGroup="+group)
		require.Equal(t, numbers(from, 3), p.Payloads())
		b.AckOK(t, group, p.Acks("completed")...)
		b.RequireNone(t, harness.PopPath(q, "consumerGroup="+group))
	}
}

func duplicateScenario(t *testing.T, b *harness.Broker, q string) {
	one := harness.Item{Queue: q, TransactionID: "one", Payload: 1}
	two := harness.Item{Queue: q, TransactionID: "two", Payload: 2}
	first := b.Push(t, one)[0]
	again := b.Push(t, two, one, two)
	require.Equal(t, []string{"queued", "duplicate", "duplicate"}, []string{again[0].Status, again[1].Status, again[2].Status})
	require.Equal(t, []string{first.MessageID, again[0].MessageID}, []string{again[1].MessageID, again[2].MessageID})
	p := b.Pop(t, q, "")
	require.Equal(t, []string{"one", "two"}, p.IDs())
	b.AckOK(t, "", p.Acks("completed")...)
	require.Equal(t, "duplicate", b.Push(t, one)[0].Status, "also once it is consumed")
	b.RequireNone(t, harness.PopPath(q, ""))
}

func transactionScenario(t *testing.T, b *harness.Broker, q string) {
	b.PushTogether(t, q, "p", 2)
	p := b.Pop(t, q, "batch=2")
	next := harness.Item{Queue: q + "-next", TransactionID: "next", Payload: 1}
	b.Commit(t, tx(push(next), ack(p.Messages[0].Ack("completed")), ack(p.Messages[1].Ack("completed"))))
	require.Equal(t, []string{"next"}, b.Pop(t, q+"-next", "").IDs())
	b.RequireNone(t, harness.PopPath(q, ""))
	b.Refuse(t, "duplicate", tx(push(next)))
	b.Refuse(t, "ack_rejected", tx(push(harness.Item{Queue: q + "-next", Payload: 2}), ack(p.Messages[0].Ack("completed"))))
}

func longPollScenario(t *testing.T, b *harness.Broker, q string) {
	for i, path := range []string{harness.PopPath(q, "wait=true&timeout=30000"), harness.PopPartitionPath(q, "p", "wait=true&timeout=30000")} {
		w := park(t.Context(), b, path)
		w.requireParked(t, 300*time.Millisecond)
		b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: i})
		p := w.answer(t)
		require.Equal(t, numbers(i, i+1), p.Payloads())
		b.AckOK(t, "", p.Acks("completed")...)
	}
	b.RequireNone(t, harness.PopPath(q, "wait=true&timeout=300"))
}

func leaseScenario(t *testing.T, b *harness.Broker, q string) {
	b.PushEach(t, q, "", 2)
	p := b.Pop(t, q, "batch=2&leaseSeconds=1")
	again := b.Pop(t, q, "wait=true&timeout=20000&batch=2")
	require.Equal(t, p.IDs(), again.IDs())
	require.Equal(t, 2, again.Messages[0].DeliveryAttempt)
	for _, r := range b.Ack(t, "", p.Acks("completed")...) {
		require.False(t, r.Success)
		require.Contains(t, r.ErrorText(), "lease")
	}
	b.AckOK(t, "", again.Acks("completed")...)
}

func windowScenario(t *testing.T, b *harness.Broker, q string) {
	b.Configure(t, q, `{"windowBuffer":2}`)
	b.PushTogether(t, q, "", 3)
	b.RequireNone(t, harness.PopPath(q, "batch=10"))
	p := b.Pop(t, q, "batch=10&wait=true&timeout=20000")
	require.Equal(t, numbers(0, 3), p.Payloads())
	require.GreaterOrEqual(t, time.Since(createdAt(t, p.Messages[0])), 2*time.Second)
}

func delayScenario(t *testing.T, b *harness.Broker, q string) {
	b.Configure(t, q, `{"delayedProcessing":2}`)
	b.PushEach(t, q, "", 2)
	b.RequireNone(t, harness.PopPath(q, ""))
	p := b.Pop(t, q, "batch=10&wait=true&timeout=20000")
	require.NotEmpty(t, p.Messages)
	require.Equal(t, numbers(0, len(p.Messages)), p.Payloads())
	require.GreaterOrEqual(t, time.Since(createdAt(t, p.Messages[0])), 2*time.Second)
}
