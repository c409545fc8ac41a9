package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestPopAnswerHasTheDocumentedShape(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	r := b.Push(t, harness.Item{Queue: q, Partition: "acct-9", TransactionID: "inv-7", Payload: map[string]int{"n": 7}})[0]

	a := b.Get(t, harness.PopPath(q, "consumerGroup=mail&batch=10"))
	require.Equal(t, http.StatusOK, a.Status, a)
	require.Equal(t, "application/json", strings.Split(a.Header.Get("Content-Type"), ";")[0])
	top := a.Object(t)
	requireKeys(t, top, "success", "queue", "partition", "partitionId", "leaseId", "consumerGroup", "messages", "partitionsClaimed")
	pid := b.DB.PartitionID(t, q, "acct-9")
	lease := top["leaseId"].(string)
	requireUUIDv7(t, lease)
	require.Equal(t, []any{true, q, "acct-9", pid, "mail", 1.0},
		[]any{top["success"], top["queue"], top["partition"], top["partitionId"], top["consumerGroup"], top["partitionsClaimed"]})

	messages := top["messages"].([]any)
	require.Len(t, messages, 1)
	m := messages[0].(map[string]any)
	requireKeys(t, m, "id", "transactionId", "traceId", "data", "producerSub", "createdAt", "partitionId", "partition",
		"leaseId", "consumerGroup", "deliveryAttempt")
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, m["createdAt"])
	at, err := time.Parse(time.RFC3339, m["createdAt"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute, "UTC, whatever the server's zone")
	delete(m, "createdAt")
	require.Equal(t, map[string]any{
		"id": r.MessageID, "transactionId": "inv-7", "traceId": nil, "data": map[string]any{"n": 7.0}, "producerSub": nil,
		"partitionId": pid, "partition": "acct-9", "leaseId": lease, "consumerGroup": "mail", "deliveryAttempt": 1.0,
	}, m)
}

func TestPopWithoutAGroupIsQueueMode(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "consumerGroup=", "consumerGroup=__QUEUE_MODE__"} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.PushEach(t, q, "", 1)
			p := b.Pop(t, q, query)
			require.Equal(t, harness.QueueMode, p.ConsumerGroup)
			require.Equal(t, harness.QueueMode, p.Messages[0].ConsumerGroup)
		})
	}
}

func TestBatchIsTheWholeBudget(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		lanes, each int
		query       string
		want        int
		claimed     int // 0: not said
	}{
		"default is 200":                       {1, 250, "", 200, 1},
		"absent when zero":                     {1, 250, "batch=0", 200, 1},
		"absent when negative":                 {1, 250, "batch=-5", 200, 1},
		"one":                                  {1, 5, "batch=1", 1, 1},
		"more than there is":                   {1, 5, "batch=1000000", 5, 1},
		"shared by the partitions, 10":         {5, 100, "batch=10&partitions=5", 10, 0},
		"shared by the partitions, 20":         {5, 100, "batch=20&partitions=5", 20, 0},
		"spills into a second partition":       {2, 100, "batch=150&partitions=2", 150, 2},
		"one partition by default":             {4, 5, "batch=100", 5, 1},
		"three partitions":                     {3, 2, "batch=100&partitions=3", 6, 3},
		"at most as many as asked":             {4, 2, "batch=100&partitions=3", 6, 3},
		"no cap when zero":                     {7, 1, "batch=100&partitions=0", 7, 7},
		"no cap when negative":                 {7, 1, "batch=100&partitions=-1", 7, 7},
		"autopilot falls back to the defaults": {2, 3, "consumerGroup=g&autopilot=true", 3, 1},
		"autopilot keeps what was asked":       {3, 3, "consumerGroup=g&autopilot=true&batch=100&partitions=2", 6, 2},
		"unknown parameters do not matter":     {1, 5, "batch=3&maxPartitions=7&future=x&count=9", 3, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			var items []harness.Item
			for _, lane := range lanes(c.lanes) {
				for i := range c.each {
					items = append(items, harness.Item{Queue: q, Partition: lane, Payload: i})
				}
			}
			b.PushQueued(t, items...)
			p := b.Pop(t, q, c.query)
			require.Len(t, p.Messages, c.want)
			require.Len(t, p.Partitions(), p.PartitionsClaimed)
			if c.claimed > 0 {
				require.Equal(t, c.claimed, p.PartitionsClaimed)
			}
			require.NotContains(t, string(p.Body), `"autopilot"`, "nothing was resolved for the caller")
			require.Equal(t, p.Messages[0].Partition, p.Partition)
			require.Equal(t, p.Messages[0].PartitionID, p.PartitionID)
			requireGroupedInOrder(t, p)
		})
	}
}

// requireGroupedInOrder requires the messages of a partition together, in
// order, without a gap from 0, all under one lease.
func requireGroupedInOrder(t *testing.T, p harness.Popped) {
	t.Helper()
	next, last := map[string]int{}, ""
	for _, m := range p.Messages {
		if m.Partition != last {
			require.NotContains(t, next, m.Partition, "a partition's messages stand together")
			last = m.Partition
		}
		require.Equal(t, fmt.Sprint(next[m.Partition]), string(m.Data))
		next[m.Partition]++
		require.Equal(t, p.LeaseID, m.LeaseID)
	}
}

func TestBatchIsFilledAcrossSegments(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 60)
	b.PushTogether(t, q, "", 100)
	p := b.Pop(t, q, "batch=100")
	require.Equal(t, append(numbers(0, 60), numbers(0, 40)...), p.Payloads())
	b.AckOK(t, "", p.Acks("completed")...)
	p = b.Pop(t, q, "batch=25")
	require.Equal(t, numbers(40, 65), p.Payloads(), "starts in the middle of a segment")
	b.AckOK(t, "", p.Acks("completed")...)
	require.Equal(t, numbers(65, 100), b.Pop(t, q, "batch=100").Payloads())
}

func TestOneLeasedBatchPerPartitionAndGroup(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p1", 3)
	first := b.Pop(t, q, "batch=1")
	require.Equal(t, []string{"0"}, first.Payloads())
	b.RequireNone(t, harness.PopPath(q, "batch=1"))
	b.RequireNone(t, harness.PopPartitionPath(q, "p1", "batch=1"))
	require.Equal(t, []string{"0"}, b.Pop(t, q, "batch=1&consumerGroup=g1").Payloads(), "groups do not see each other")
	require.Equal(t, []string{"0"}, b.PopPartition(t, q, "p1", "batch=1&consumerGroup=g2").Payloads())

	b.PushEach(t, q, "p2", 1)
	other := b.Pop(t, q, "batch=1")
	require.Equal(t, "p2", other.Partition, "another partition is free")
	require.NotEqual(t, first.LeaseID, other.LeaseID)
	b.AckOK(t, "", first.Acks("completed")...)
	require.Equal(t, []string{"1"}, b.Pop(t, q, "batch=1").Payloads())
}

func TestAutoAckCommitsAtDelivery(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "p", 10)
	p := b.Pop(t, q, "batch=4&autoAck=true&consumerGroup=g")
	require.Equal(t, numbers(0, 4), p.Payloads())
	require.Empty(t, p.LeaseID)
	for _, m := range p.Messages {
		require.Empty(t, m.LeaseID)
		require.Equal(t, 1, m.DeliveryAttempt)
		require.NotEmpty(t, m.PartitionID)
	}
	c := b.DB.Cursor(t, q, "p", "g")
	require.Equal(t, int64(3), c.Committed)
	require.Equal(t, int64(4), c.TotalConsumed)
	require.Nil(t, c.BatchEnd)
	require.Nil(t, c.Worker)
	require.Nil(t, c.ExpiresAt)
	require.Equal(t, numbers(4, 10), b.PopPartition(t, q, "p", "autoAck=true&consumerGroup=g").Payloads())
	b.RequireNone(t, harness.PopPath(q, "autoAck=true&consumerGroup=g"))
	require.Equal(t, numbers(0, 10), b.Pop(t, q, "").Payloads(), "other groups are not touched")
}

func TestAutoAckRespectsALiveLease(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 2)
	b.Pop(t, q, "batch=1")
	b.RequireNone(t, harness.PopPath(q, "autoAck=true"))
}

func TestLeaseLength(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		options string // "" leaves the queue unconfigured
		query   string
		want    time.Duration
	}{
		"60 s on a queue that a push made":   {"", "", 60 * time.Second},
		"300 s after a plain configure":      {`{}`, "", 300 * time.Second},
		"the queue's own":                    {`{"leaseTime":45}`, "", 45 * time.Second},
		"per request":                        {`{"leaseTime":45}`, "leaseSeconds=7", 7 * time.Second},
		"zero per request is absent":         {`{"leaseTime":45}`, "leaseSeconds=0", 45 * time.Second},
		"negative per request is absent":     {`{"leaseTime":45}`, "leaseSeconds=-3", 45 * time.Second},
		"per request on an implicit queue":   {"", "leaseSeconds=1", time.Second},
		"longer than the queue's is allowed": {`{"leaseTime":1}`, "leaseSeconds=1000", 1000 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			if c.options != "" {
				b.Configure(t, q, c.options)
			}
			b.PushEach(t, q, "p", 1)
			for i, pop := range []func() harness.Popped{
				func() harness.Popped { return b.Pop(t, q, c.query+"&consumerGroup=g0") },
				func() harness.Popped { return b.PopPartition(t, q, "p", c.query+"&consumerGroup=g1") },
				func() harness.Popped {
					return b.Discover(t, "task=&namespace="+labelled(t, b, q)+"&"+c.query+"&consumerGroup=g2")
				},
			} {
				require.Len(t, pop().Messages, 1)
				row := b.DB.Cursor(t, q, "p", fmt.Sprintf("g%d", i))
				require.Equal(t, c.want, row.ExpiresAt.Sub(*row.AcquiredAt).Round(time.Millisecond))
			}
		})
	}
}

// labelled gives a queue a namespace of its own behind the broker's back.
func labelled(t *testing.T, b *harness.Broker, queue string) string {
	t.Helper()
	b.DB.Exec(t, `UPDATE queen.queues SET namespace = name WHERE name = $1`, queue)
	return queue
}

func TestLeaseTimeChangeAffectsNewPopsOnly(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"leaseTime":100}`)
	b.PushEach(t, q, "p", 1)
	b.Pop(t, q, "consumerGroup=old")
	before := b.DB.Cursor(t, q, "p", "old").ExpiresAt
	b.Configure(t, q, `{"leaseTime":10}`)
	b.Pop(t, q, "consumerGroup=new")
	require.Equal(t, before, b.DB.Cursor(t, q, "p", "old").ExpiresAt)
	row := b.DB.Cursor(t, q, "p", "new")
	require.Equal(t, 10*time.Second, row.ExpiresAt.Sub(*row.AcquiredAt).Round(time.Millisecond))
}

func TestExpiredLeaseIsClaimedAgainWithANewBudget(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 5)
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "batch=2").Payloads())
	b.DB.ExpireLeases(t, q)
	again := b.Pop(t, q, "batch=4")
	require.Equal(t, numbers(0, 4), again.Payloads(), "not limited to the old batch")
	require.Equal(t, 2, again.Messages[0].DeliveryAttempt)
	require.Equal(t, 0, b.DB.Cursor(t, q, "Default", harness.QueueMode).RetryCount, "an expiry charges nothing")
}

func TestRealLeaseExpiryRedelivers(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"leaseTime":1}`)
	ids := b.PushEach(t, q, "", 1)
	first := b.Pop(t, q, "")
	require.Equal(t, ids, first.IDs())
	expires := b.DB.Cursor(t, q, "Default", harness.QueueMode).ExpiresAt
	again := b.Pop(t, q, "wait=true&timeout=20000")
	require.Equal(t, ids, again.IDs())
	require.NotEqual(t, first.LeaseID, again.LeaseID)
	require.False(t, time.Now().Before(*expires), "not while the first lease lived")
}

func TestDeliveryAttemptCountsRedeliveriesOfOneBatchStart(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"retryLimit":10}`)
	b.PushEach(t, q, "", 3)
	attempt := func(want int) harness.Popped {
		t.Helper()
		p := b.Pop(t, q, "batch=2")
		for _, m := range p.Messages {
			require.Equal(t, want, m.DeliveryAttempt)
		}
		return p
	}
	attempt(1)
	b.DB.ExpireLeases(t, q)
	p := attempt(2)
	b.AckOK(t, "", p.Acks("failed")...)
	p = attempt(3)
	b.AckOK(t, "", p.Messages[0].Ack("completed"), p.Messages[1].Ack("retry"))
	p = attempt(1) // another start
	require.Equal(t, numbers(1, 3), p.Payloads())
	b.AckOK(t, "", p.Acks("retry")...)
	p = attempt(2)
	b.AckOK(t, "", p.Acks("completed")...)
	b.PushEach(t, q, "", 1)
	attempt(1)
}

func TestPopSkipsARetentionGap(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 6)
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "batch=2&autoAck=true").Payloads())
	pid := b.DB.PartitionID(t, q, "Default")
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset < 4`, pid)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = 4 WHERE id = $1`, pid)
	p := b.Pop(t, q, "")
	require.Equal(t, numbers(4, 6), p.Payloads())
	b.AckOK(t, "", p.Acks("completed")...)
	require.Equal(t, numbers(4, 6), b.Pop(t, q, "consumerGroup=late").Payloads())
}

func TestEmptiedPartitionIsSealed(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(q string) string{
		"wildcard":  func(q string) string { return harness.PopPath(q, "consumerGroup=g") },
		"partition": func(q string) string { return harness.PopPartitionPath(q, "p", "consumerGroup=g") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.PushEach(t, q, "p", 5)
			require.Len(t, b.PopPartition(t, q, "p", "consumerGroup=g&batch=1&autoAck=true").Messages, 1)
			pid := b.DB.PartitionID(t, q, "p")
			b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1`, pid)
			b.DB.Exec(t, `UPDATE queen.log_partitions SET log_start = last_offset + 1 WHERE id = $1`, pid)
			b.RequireNone(t, path(q))
			c := b.DB.Cursor(t, q, "p", "g")
			require.Equal(t, int64(4), c.Committed)
			require.Nil(t, c.Worker)
			b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: "next"})
			require.Equal(t, []string{`"next"`}, popUntil(t, b, path(q)).Payloads())
		})
	}
}

func TestEmptyPollsBesideALeaseDoNotHideTheBacklog(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 3)
	require.Len(t, b.Pop(t, q, "batch=1&consumerGroup=g").Messages, 1)
	b.DB.Exec(t, `UPDATE queen.log_partitions SET last_write_at = now() - interval '10 minutes' WHERE id = $1`, b.DB.PartitionID(t, q, "p"))
	for range 3 {
		b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
	}
	b.DB.ExpireLeases(t, q)
	require.Equal(t, numbers(0, 3), b.Pop(t, q, "consumerGroup=g").Payloads())
}

func TestDrainedQueueShowsOldLanesToANewWrite(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, lane := range lanes(5) {
		b.PushEach(t, q, lane, 1)
	}
	require.Len(t, b.Pop(t, q, "partitions=0&autoAck=true").Messages, 5)
	for range 3 {
		b.RequireNone(t, harness.PopPath(q, ""))
	}
	b.DB.Exec(t, `UPDATE queen.log_partitions p SET last_write_at = now() - interval '1 hour'
		FROM queen.queues q WHERE q.id = p.queue_id AND q.name = $1`, q)
	b.RequireNone(t, harness.PopPath(q, ""))
	b.PushQueued(t, harness.Item{Queue: q, Partition: lanes(5)[3], Payload: "late"})
	require.Equal(t, []string{`"late"`}, b.Pop(t, q, "").Payloads())
}

func TestPopReplyStaysUnder16MiB(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for i := range 3 {
		b.PushQueued(t, harness.Item{Queue: q, Payload: fmt.Sprint(i) + repeat(7<<20)})
	}
	p := b.Pop(t, q, "batch=10")
	require.Len(t, p.Messages, 2)
	require.LessOrEqual(t, len(p.Body), 17<<20)
	b.AckOK(t, "", p.Acks("completed")...)
	p = b.Pop(t, q, "batch=10")
	require.Len(t, p.Messages, 1, "what was left out was not leased either")
	require.Equal(t, `"2`, string(p.Messages[0].Data[:2]))
}

func TestOversizedMessageIsDeliveredAlone(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q, Payload: "before"})
	b.PushQueued(t, harness.Item{Queue: q, Payload: repeat(20 << 20)})
	b.PushQueued(t, harness.Item{Queue: q, Payload: "after"})
	var sizes []int
	for range 3 {
		p := b.Pop(t, q, "batch=10&autoAck=true")
		require.Len(t, p.Messages, 1)
		sizes = append(sizes, len(p.Messages[0].Data))
	}
	require.Equal(t, []int{8, 20<<20 + 2, 7}, sizes)
	b.RequireNone(t, harness.PopPath(q, ""))
}
