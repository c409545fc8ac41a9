package e2e_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// createdAt is the commit instant of a message.
func createdAt(t *testing.T, m harness.Message) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, m.CreatedAt)
	require.NoError(t, err)
	return at
}

// popUntil polls without waiting until something is delivered.
func popUntil(t *testing.T, b *harness.Broker, path string) harness.Popped {
	t.Helper()
	var p harness.Popped
	harness.Eventually(t, 20*time.Second, "delivery from "+path, func() bool {
		var err error
		p, err = b.TryPop(t.Context(), path)
		require.NoError(t, err)
		return p.Status == http.StatusOK
	})
	return p
}

func TestDelayedProcessingHidesYoungMessages(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(q string) string{
		"wildcard":  func(q string) string { return harness.PopPath(q, "wait=false") },
		"partition": func(q string) string { return harness.PopPartitionPath(q, "Default", "wait=false") },
		"discovery": func(q string) string { return "/api/v1/pop?namespace=" + q },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			b.Configure(t, q, `{"delayedProcessing":2,"namespace":"`+q+`"}`)
			b.PushEach(t, q, "", 1)
			p, err := b.TryPop(t.Context(), path(q))
			require.NoError(t, err)
			p.RequireEmpty(t)
			require.Equal(t, int64(-1), cursorOr(b.DB.Cursor(t, q, "Default", harness.QueueMode), -1), "hidden is not consumed")
			p = popUntil(t, b, path(q))
			require.Len(t, p.Messages, 1)
			require.GreaterOrEqual(t, time.Since(createdAt(t, p.Messages[0])), 2*time.Second)
		})
	}
}

func cursorOr(c *harness.Cursor, absent int64) int64 {
	if c == nil {
		return absent
	}
	return c.Committed
}

func TestDelayWakesALongPoll(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"delayedProcessing":1}`)
	b.PushEach(t, q, "", 1)
	p := b.Pop(t, q, "wait=true&timeout=20000")
	require.Len(t, p.Messages, 1)
	require.GreaterOrEqual(t, time.Since(createdAt(t, p.Messages[0])), time.Second)
}

func TestDelayAppliesToStoredMessages(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 2)
	b.Configure(t, q, `{"delayedProcessing":3600}`)
	b.RequireNone(t, harness.PopPath(q, ""))
	b.RequireNone(t, harness.PopPartitionPath(q, "Default", ""))
	b.Configure(t, q, `{}`)
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "").Payloads())
}

func TestDelayHidesASuffixAndNeverSkips(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"delayedProcessing":600}`)
	b.PushEach(t, q, "", 4)
	pid := b.DB.PartitionID(t, q, "Default")
	// The first and the last are old enough; the two between them are not.
	b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = created_at - interval '1 hour'
		WHERE partition_id = $1 AND base_offset IN (0, 3)`, pid)
	p := b.Pop(t, q, "")
	require.Equal(t, []string{"0"}, p.Payloads(), "nothing overtakes a hidden message")
	b.AckOK(t, "", p.Acks("completed")...)
	b.RequireNone(t, harness.PopPath(q, ""))
	b.RequireNone(t, harness.PopPartitionPath(q, "Default", ""))
	require.Equal(t, int64(0), b.DB.Committed(t, q, "Default", harness.QueueMode))
	b.DB.Exec(t, `UPDATE queen.log_segments SET created_at = created_at - interval '1 hour' WHERE partition_id = $1`, pid)
	require.Equal(t, numbers(1, 4), popUntil(t, b, harness.PopPath(q, "")).Payloads())
}

func TestDelayedSegmentsAreNotSealedOver(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"delayedProcessing":600}`)
	b.PushEach(t, q, "p", 2)
	for range 2 {
		b.RequireNone(t, harness.PopPath(q, "consumerGroup=g"))
		b.RequireNone(t, harness.PopPartitionPath(q, "p", "consumerGroup=g"))
	}
	require.Equal(t, int64(-1), cursorOr(b.DB.Cursor(t, q, "p", "g"), -1))
	b.Configure(t, q, `{}`)
	require.Equal(t, numbers(0, 2), popUntil(t, b, harness.PopPath(q, "consumerGroup=g")).Payloads())
}

func TestWindowBufferHoldsARecentlyWrittenPartition(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"windowBuffer":2}`)
	b.PushTogether(t, q, "", 3)
	b.RequireNone(t, harness.PopPath(q, "batch=4&wait=false"))
	b.RequireNone(t, harness.PopPartitionPath(q, "Default", "batch=4"))
	p := popUntil(t, b, harness.PopPath(q, "batch=4&wait=false"))
	require.Equal(t, numbers(0, 3), p.Payloads())
	require.GreaterOrEqual(t, time.Since(createdAt(t, p.Messages[0])), 2*time.Second)
}

func TestWindowBufferHoldsEachPartitionByItself(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "quiet", 1)
	age(t, b, q, 7200)
	b.Configure(t, q, `{"windowBuffer":3600}`)
	b.PushEach(t, q, "busy", 1)
	p := b.Pop(t, q, "partitions=0")
	require.Equal(t, []string{"quiet"}, p.Partitions())
}

func TestMinPopWaitTimeGathersABatch(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"minPopWaitTime":30000}`)
	b.PushEach(t, q, "", 1)
	require.Len(t, b.Pop(t, q, "batch=10&consumerGroup=nowait").Messages, 1, "wait=false is never held")
	require.Len(t, b.Pop(t, q, "batch=1&wait=true&consumerGroup=single").Messages, 1, "a batch of one is never held")
	require.Len(t, b.PopPartition(t, q, "Default", "batch=10&wait=true&consumerGroup=pinned").Messages, 1, "only the wildcard route holds")

	held := make(chan harness.Popped, 1)
	began := time.Now()
	go func() {
		p, err := b.TryPop(t.Context(), harness.PopPath(q, "batch=3&wait=true&timeout=50000"))
		if err != nil {
			t.Error(err)
		}
		held <- p
	}()
	for i := 1; i < 3; i++ {
		select {
		case p := <-held:
			require.Fail(t, "answered an under-full batch", "%s", p.Answer)
		case <-time.After(300 * time.Millisecond):
		}
		b.PushQueued(t, harness.Item{Queue: q, Payload: i})
	}
	require.Equal(t, numbers(0, 3), (<-held).Payloads())
	require.Less(t, time.Since(began), 20*time.Second, "ends when the batch is full, not with the window")
}

func TestMinPopWaitTimeEndsWithTheCallersTimeout(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"minPopWaitTime":60000}`)
	b.PushEach(t, q, "", 1)
	began := time.Now()
	p := b.Pop(t, q, "batch=3&wait=true&timeout=700")
	require.Less(t, time.Since(began), 20*time.Second)
	if p.Status == http.StatusNoContent { // the deadline may also win
		p = b.Pop(t, q, "batch=3")
	}
	require.Len(t, p.Messages, 1)
}

func TestVisibilityOptionsChangeAtOnceInSQL(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "", 1)
	for i, option := range []string{"delayedProcessing", "windowBuffer"} {
		group := fmt.Sprintf("consumerGroup=g%d", i)
		b.Configure(t, q, `{"`+option+`":3600}`)
		b.RequireNone(t, harness.PopPath(q, group))
		b.Configure(t, q, `{}`)
		require.Len(t, popUntil(t, b, harness.PopPath(q, group)).Messages, 1)
	}
}
