package e2e_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestTransactionRepeatsInsideTheBundle(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	item := harness.Item{Queue: q, Partition: "p", TransactionID: "a", Payload: 1}
	elsewhere := item
	elsewhere.Partition = "other"
	answer := b.Commit(t, tx(push(item, harness.Item{Queue: q, Partition: "p", Payload: 2}), push(elsewhere), push(item)))
	require.Equal(t, []bool{false, false, false, true},
		[]bool{answer.Results[0].Duplicate, answer.Results[1].Duplicate, answer.Results[2].Duplicate, answer.Results[3].Duplicate})
	require.Equal(t, answer.Results[0].MessageID, answer.Results[3].MessageID)
	require.Equal(t, []string{"1", "2"}, b.PopPartition(t, q, "p", "").Payloads())
	require.Len(t, b.PopPartition(t, q, "other", "").Messages, 1)
}

func TestTransactionPushWithoutDeduplication(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"dedupWindowSeconds":0}`)
	item := harness.Item{Queue: q, TransactionID: "a", Payload: 1}
	b.PushQueued(t, item)
	b.Commit(t, tx(push(item)))
	require.Len(t, b.Pop(t, q, "").Messages, 2)
}

func TestPushAndTransactionShareTheWindow(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	answer := b.Commit(t, tx(push(harness.Item{Queue: q, TransactionID: "a", Payload: 1}, harness.Item{Queue: q, Payload: 2})))
	r := b.Push(t, harness.Item{Queue: q, TransactionID: "a", Payload: 3}, harness.Item{Queue: q, TransactionID: answer.Results[1].TransactionID, Payload: 4})
	require.Equal(t, []string{"duplicate", "duplicate"}, statuses(r))
	require.Equal(t, []string{answer.Results[0].MessageID, answer.Results[1].MessageID}, []string{r[0].MessageID, r[1].MessageID})
}

func TestTransactionalNacksKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	t.Run("retry never charges and dlq files at once", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":2}`)
		b.PushEach(t, q, "p", 1)
		for range 5 {
			p := b.Pop(t, q, "")
			require.Len(t, p.Messages, 1)
			b.Commit(t, tx(ack(p.Messages[0].Ack("retry"))))
		}
		require.Empty(t, b.DLQ(t, q, ""))
		p := b.Pop(t, q, "")
		last := p.Messages[0].Ack("dlq")
		last.Error = "poison"
		answer := b.Commit(t, tx(ack(last)))
		require.True(t, answer.Results[0].DLQ)
		harness.Eventually(t, 10*time.Second, "the dead letter", func() bool { return len(b.DLQ(t, q, "")) == 1 })
		require.Equal(t, "poison", b.DLQ(t, q, "")[0].ErrorMessage)
		b.RequireNone(t, harness.PopPath(q, ""))
	})
	t.Run("failed spends the budget and then dead-letters", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":1}`)
		b.PushEach(t, q, "p", 2)
		p := b.Pop(t, q, "batch=2")
		b.Commit(t, tx(ack(p.Messages[0].Ack("failed"))))
		require.Equal(t, 1, b.DB.Cursor(t, q, "p", harness.QueueMode).RetryCount)
		p = b.Pop(t, q, "batch=2")
		require.Equal(t, numbers(0, 2), p.Payloads())
		b.Commit(t, tx(ack(p.Messages[0].Ack("failed"))))
		harness.Eventually(t, 10*time.Second, "the dead letter", func() bool { return len(b.DLQ(t, q, "")) == 1 })
		require.Equal(t, numbers(1, 2), popUntil(t, b, harness.PopPath(q, "")).Payloads())
	})
	t.Run("limit zero with a push commits", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":0}`)
		b.PushEach(t, q, "p", 1)
		p := b.Pop(t, q, "")
		a := p.Messages[0].Ack("failed")
		a.LeaseID = ""
		b.Commit(t, harness.Transaction{Operations: []any{ack(a), push(harness.Item{Queue: q + "-to", Payload: 1})}, RequiredLeases: []string{p.LeaseID}})
		require.Len(t, b.Pop(t, q+"-to", "").Messages, 1)
		harness.Eventually(t, 10*time.Second, "the dead letter", func() bool { return len(b.DLQ(t, q, "")) == 1 })
		b.RequireNone(t, harness.PopPath(q, ""))
	})
	t.Run("drop", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		b.Configure(t, q, `{"retryLimit":0,"deadLetterQueue":false,"dlqAfterMaxRetries":false}`)
		b.PushEach(t, q, "p", 2)
		p := b.Pop(t, q, "batch=2")
		answer := b.Commit(t, tx(ack(p.Messages[0].Ack("failed"))))
		require.False(t, answer.Results[0].DLQ)
		require.Equal(t, numbers(1, 2), b.Pop(t, q, "").Payloads())
		require.Empty(t, b.DLQ(t, q, ""))
	})
	t.Run("mixed statuses of one batch are one decision", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 5, "")
		b.Commit(t, tx(ack(p.Messages[3].Ack("completed")), ack(p.Messages[1].Ack("failed")), ack(p.Messages[0].Ack("completed"))))
		row := b.DB.Cursor(t, q, "p", harness.QueueMode)
		require.Equal(t, []any{int64(0), 1, true}, []any{row.Committed, row.RetryCount, row.Worker == nil})
		require.Equal(t, numbers(1, 5), b.Pop(t, q, "").Payloads())
	})
}

func TestConcurrentTransactionsOverTheSameLanesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const workers, rounds, width = 8, 10, 6
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				items := make([]harness.Item, width)
				for i := range items { // every worker another order
					lane := (i*(1+2*(w%2)) + w + r) % width
					items[i] = harness.Item{Queue: q, Partition: lanes(width)[lane], Payload: w}
				}
				answer, err := b.TryTransact(t.Context(), tx(push(items...)))
				if err != nil || !answer.Success {
					t.Errorf("worker %d: %v %s", w, err, answer.Answer)
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for _, lane := range lanes(width) {
		n := len(drain(t, b, harness.PopPartitionPath(q, lane, "batch=1000")))
		total += n
	}
	require.Equal(t, workers*rounds*width, total)
}

func TestConcurrentTransactionsOnOneAckCommitOnce(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, "")
	answers := make([]harness.TxAnswer, 6)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			var err error
			answers[i], err = b.TryTransact(t.Context(), tx(ack(p.Messages[0].Ack("completed")), push(harness.Item{Queue: q + "-to", Payload: i})))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	won := 0
	for _, a := range answers {
		if a.Success {
			won++
		} else {
			require.Equal(t, "ack_rejected", a.Reason, "the lease ended with the winner")
		}
	}
	require.Equal(t, 1, won)
	require.Len(t, b.Pop(t, q+"-to", "").Messages, 1)
}

func TestTransactionKeepsUnknownRidersOut(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	answer := b.TransactRaw(t, fmt.Sprintf(`{"future":1,"requiredLeases":[],"operations":[{"type":"push","queue":%q,"payload":1}]}`, q))
	require.True(t, answer.Success, "%s", answer.Answer)
	require.Len(t, b.Pop(t, q, "").Messages, 1)
}
