package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestRetryBudget(t *testing.T) {
	t.Parallel()
	nack := func(t *testing.T, b *harness.Broker, q, status string) []verdict {
		t.Helper()
		p := b.Pop(t, q, "batch=1")
		require.Len(t, p.Messages, 1)
		return verdicts(b.Ack(t, "", p.Acks(status)...))
	}
	released := []verdict{{success: true, released: true}}
	dead := []verdict{{success: true, released: true, dlq: true}}

	for _, limit := range []int{0, 1, 2, 3, 5} {
		t.Run(fmt.Sprintf("limit %d dead-letters at failure %d", limit, limit+1), func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.Configure(t, q, fmt.Sprintf(`{"retryLimit":%d}`, limit))
			b.PushEach(t, q, "p", 1)
			for range limit {
				require.Equal(t, released, nack(t, b, q, "failed"))
			}
			require.Equal(t, dead, nack(t, b, q, "failed"))
			require.Equal(t, limit, b.DLQ(t, q, "")[0].RetryCount, "what was consumed of the budget")
			b.RequireNone(t, harness.PopPath(q, ""))
		})
	}
	t.Run("an unconfigured queue has three", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.PushEach(t, q, "p", 1)
		for range 6 {
			require.Equal(t, released, nack(t, b, q, "retry"))
			require.Empty(t, b.DLQ(t, q, ""))
		}
		for range 3 {
			require.Equal(t, released, nack(t, b, q, "failed"))
		}
		require.Equal(t, dead, nack(t, b, q, "failed"))
	})
	t.Run("expiry and retry charge nothing", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":2}`)
		b.PushEach(t, q, "p", 1)
		for i := range 4 {
			p := b.Pop(t, q, "")
			require.Equal(t, i+1, p.Messages[0].DeliveryAttempt)
			b.DB.ExpireLeases(t, q)
		}
		require.Empty(t, b.DLQ(t, q, ""))
		require.Equal(t, released, nack(t, b, q, "failed"))
		require.Equal(t, released, nack(t, b, q, "retry"))
		require.Equal(t, released, nack(t, b, q, "failed"))
		require.Equal(t, dead, nack(t, b, q, "failed"))
	})
	t.Run("completing the batch resets it", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":1}`)
		b.PushEach(t, q, "p", 2)
		require.Equal(t, released, nack(t, b, q, "failed"))
		require.Equal(t, released, nack(t, b, q, "completed"))
		require.Equal(t, released, nack(t, b, q, "failed"))
		require.Equal(t, dead, nack(t, b, q, "failed"))
	})
	t.Run("a partial completion does not", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":1}`)
		b.PushTogether(t, q, "p", 3)
		require.Equal(t, released, nack(t, b, q, "failed"))
		p := b.Pop(t, q, "batch=3")
		b.AckOK(t, "", p.Messages[0].Ack("completed"))
		require.Equal(t, 1, b.DB.Cursor(t, q, "p", harness.QueueMode).RetryCount)
		require.Equal(t, dead, verdicts(b.Ack(t, "", p.Messages[1].Ack("failed"))), "other head message, same budget")
	})
	t.Run("dead-lettering and dropping reset it", func(t *testing.T) {
		t.Parallel()
		for _, options := range []string{`{"retryLimit":1}`, `{"retryLimit":1,"deadLetterQueue":false,"dlqAfterMaxRetries":false}`} {
			b, q := shared(t)
			b.Configure(t, q, options)
			b.PushEach(t, q, "p", 2)
			nack(t, b, q, "failed")
			nack(t, b, q, "failed") // the end of the first message
			require.Equal(t, 0, b.DB.Cursor(t, q, "p", harness.QueueMode).RetryCount)
			require.Equal(t, released, nack(t, b, q, "failed"))
			require.Equal(t, []string{"1"}, b.Pop(t, q, "").Payloads())
		}
	})
	t.Run("lowering the limit below the count ends it", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":5}`)
		b.PushEach(t, q, "p", 1)
		require.Equal(t, released, nack(t, b, q, "failed"))
		require.Equal(t, released, nack(t, b, q, "failed"))
		b.Configure(t, q, `{"retryLimit":1}`)
		require.Equal(t, dead, nack(t, b, q, "failed"))
	})
	t.Run("each group has its own", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":0}`)
		b.PushEach(t, q, "p", 1)
		p := b.Pop(t, q, "consumerGroup=a")
		require.True(t, b.AckOK(t, "a", p.Acks("failed")...)[0].DLQ)
		p = b.Pop(t, q, "consumerGroup=b")
		require.Len(t, p.Messages, 1)
		require.True(t, b.AckOK(t, "b", p.Acks("completed")...)[0].Success)
		require.Len(t, b.DLQ(t, q, ""), 1)
	})
}

func TestFailedBatchComesBackWhole(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"retryLimit":3}`)
	b.PushTogether(t, q, "p", 100)
	for range 2 {
		p := b.Pop(t, q, "batch=100&consumerGroup=g")
		require.Equal(t, numbers(0, 100), p.Payloads())
		b.AckOK(t, "g", p.Acks("failed")...)
	}
	p := b.Pop(t, q, "batch=100&consumerGroup=g")
	require.Equal(t, numbers(0, 100), p.Payloads())
	require.Equal(t, 3, p.Messages[0].DeliveryAttempt)
	b.AckOK(t, "g", p.Acks("completed")...)
	require.Empty(t, b.DLQ(t, q, ""))
	require.Equal(t, numbers(0, 100), b.Pop(t, q, "consumerGroup=other").Payloads())
}

func TestAckIsVisibleToTheNextPop(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 30)
	for i := range 30 {
		p := b.Pop(t, q, "batch=1")
		require.Equal(t, numbers(i, i+1), p.Payloads())
		b.AckOK(t, "", p.Acks("completed")...)
	}
	b.RequireNone(t, harness.PopPath(q, "batch=1"))
}

func TestAckSurvivesTheBrokerThatPopped(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	peer := b.Sibling(t)
	q := queueName(t)
	b.PushTogether(t, q, "p", 4)
	p := b.Pop(t, q, "batch=4")
	require.Equal(t, all(4, verdict{success: true, released: true}), verdicts(peer.Ack(t, "", p.Acks("completed")...)),
		"the other broker never saw this batch")
	b.PushTogether(t, q, "p", 4)
	p = peer.Pop(t, q, "batch=4")
	b.DB.ExpireLeases(t, q)
	again := b.Pop(t, q, "batch=2")
	require.Len(t, again.Messages, 2)
	require.Equal(t, all(4, verdict{err: leaseText}), verdicts(peer.Ack(t, "", p.Acks("completed")...)), "a remembered batch is checked again")
	require.Equal(t, int64(3), b.DB.Committed(t, q, "p", harness.QueueMode))
}
