package e2e_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// counted is what the brokers have written of a queue, over all minutes.
type counted struct {
	PushRequests, PushMessages, PopRequests, PopMessages, PopEmpty int64
	AckRequests, AckSuccess, AckFailed, Transactions               int64
	LanesCreated                                                   int64
}

func countedOf(t *testing.T, db *harness.Database, q string) (c counted) {
	t.Helper()
	db.Row(t, `SELECT coalesce(sum(m.push_requests), 0)::bigint, coalesce(sum(m.push_messages), 0)::bigint,
			coalesce(sum(m.pop_requests), 0)::bigint, coalesce(sum(m.pop_messages), 0)::bigint, coalesce(sum(m.pop_empty), 0)::bigint,
			coalesce(sum(m.ack_requests), 0)::bigint, coalesce(sum(m.ack_success), 0)::bigint, coalesce(sum(m.ack_failed), 0)::bigint,
			coalesce(sum(m.transactions), 0)::bigint, coalesce(sum(m.partitions_created), 0)::bigint
		FROM queen.queue_lag_metrics AS m JOIN queen.queues AS q ON q.id = m.queue_id WHERE q.name = $1`, []any{q}, []any{
		&c.PushRequests, &c.PushMessages, &c.PopRequests, &c.PopMessages, &c.PopEmpty,
		&c.AckRequests, &c.AckSuccess, &c.AckFailed, &c.Transactions, &c.LanesCreated,
	})
	return c
}

// TestBrokersWriteWhatTheyCount does a known amount of work through two brokers and
// reads it back, while they run and after they have stopped.
func TestBrokersWriteWhatTheyCount(t *testing.T) {
	t.Parallel()
	const flush = "METRICS_FLUSH_MS=1000"
	one := harness.StartOne(t, flush, "QUEEN_SERVER_ID=one")
	two := one.Sibling(t, flush, "QUEEN_SERVER_ID=two")
	q := queueName(t)

	ids := one.PushEach(t, q, "a", 4)
	one.PushTogether(t, q, "b", 6)
	require.Equal(t, "duplicate", one.Push(t, harness.Item{Queue: q, Partition: "a", TransactionID: ids[0], Payload: 0})[0].Status)
	pop := func(query string) harness.Popped {
		p, err := two.TryPop(t.Context(), "/api/v1/pop/queue/"+q+"?batch=100&"+query)
		require.NoError(t, err)
		return p
	}
	popped := pop("partitions=10")
	require.Len(t, popped.Messages, 10)
	pop("").RequireEmpty(t)
	acks := popped.Acks("completed")
	one.AckOK(t, "", acks[:9]...) // another broker than the one that delivered
	two.AckOK(t, "", acks[9:]...)
	two.PushTogether(t, q, "c", 3)
	require.Len(t, pop("autoAck=true").Messages, 3)
	one.Commit(t, harness.Transaction{Operations: []any{harness.PushOp(
		harness.Item{Queue: q, Partition: "d", Payload: 1}, harness.Item{Queue: q, Partition: "a", Payload: 2})}})
	want := counted{
		PushRequests: 7, PushMessages: 15, PopRequests: 3, PopMessages: 13, PopEmpty: 1,
		AckRequests: 2, AckSuccess: 13, Transactions: 1, LanesCreated: 4,
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, want, countedOf(t, one.DB, q)) }, 20*time.Second, 50*time.Millisecond)
	require.Equal(t, int64(2), harness.Value[int64](t, one.DB, `SELECT count(DISTINCT hostname) FROM queen.system_metrics
		WHERE metrics @> '{"database": {}}' AND (metrics #>> '{memory,rss_bytes}')::bigint > 1000000`))

	// A pop that waits is seen at its broker.
	idle := q + "-idle"
	waiting, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = two.TryPop(waiting, "/api/v1/pop/queue/"+idle+"?wait=true&timeout=60000")
	}()
	require.Eventually(t, func() bool {
		return harness.Value[int64](t, one.DB, `SELECT count(*) FROM queen.queue_parked_replica AS r JOIN queen.queues AS q ON q.id = r.queue_id
			WHERE q.name = $1 AND r.hostname = 'two' AND r.parked_count > 0`, idle) > 0
	}, 20*time.Second, 50*time.Millisecond)
	cancel()
	<-gone

	// What was counted since the last flush is written at the end.
	one.PushTogether(t, q, "a", 5)
	one.Terminate(t)
	two.Terminate(t)
	want.PushRequests++
	want.PushMessages += 5
	require.Equal(t, want, countedOf(t, one.DB, q))
	var total, lifetime int64
	one.DB.Row(t, `SELECT sum(push_messages)::bigint, (SELECT push_messages FROM queen.worker_metrics_summary) FROM queen.worker_metrics`,
		nil, []any{&total, &lifetime})
	require.Equal(t, []int64{20, 20}, []int64{total, lifetime})
}
