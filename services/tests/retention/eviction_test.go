package retention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestMaxWaitTakesWhatIsLeased evicts messages that a worker holds a lease on.
func TestMaxWaitTakesWhatIsLeased(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"maxWaitTimeSeconds":3600}`)
	x.push(t, 5)
	x.consume(t, "done", 5)
	p := x.lease(t, "working", 3)
	x.age(t, 3, longAgo)
	x.cycle(t)
	x.requireStart(t, 4)
	require.Equal(t, map[string]int64{byMaxWait: 4}, x.removed(t))
	require.Empty(t, x.DLQ(t, x.queue, ""), "nothing is dead-lettered")

	cursor := x.DB.Cursor(t, x.queue, lane, "working")
	require.EqualValues(t, -1, cursor.Committed, "the cursor stays below the watermark")
	require.EqualValues(t, 2, *cursor.BatchEnd, "and so does the lease")
	x.DB.ExpireLeases(t, x.queue)
	require.Equal(t, numbers(4, 5), x.Pop(t, x.queue, "consumerGroup=working&batch=10").Payloads(), "it resumes at the next message that exists")
	require.Len(t, p.Messages, 3)
}

// TestLeaseOnEvictedMessagesCanStillBeSettled acknowledges what is gone: the
// worker did the work.
func TestLeaseOnEvictedMessagesCanStillBeSettled(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"maxWaitTimeSeconds":3600}`)
	x.push(t, 3)
	p := x.lease(t, "g", 2)
	ageLanes(t, x.DB, []string{p.PartitionID}, 1, longAgo, segments)
	x.cycle(t)
	x.requireStart(t, 2)
	x.AckOK(t, "g", p.Acks("completed")...)
	require.Equal(t, numbers(2, 3), x.Pop(t, x.queue, "consumerGroup=g&batch=10").Payloads())
}

// TestEvictedMessageCannotBeDeadLettered asks for the dead letter of a message
// whose segment is gone.
func TestEvictedMessageCannotBeDeadLettered(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]string{
		"by age":      `{"retentionEnabled":true,"retentionSeconds":3600}`,
		"by max wait": `{"maxWaitTimeSeconds":3600}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := shared(t)
			x.Configure(t, x.queue, options)
			x.push(t, 3)
			p := x.lease(t, "g", 2)
			ageLanes(t, x.DB, []string{p.PartitionID}, 1, longAgo, segments)
			x.cycle(t)
			x.requireStart(t, 2)
			r := x.Ack(t, "g", p.Messages[0].Ack("dlq"))[0]
			require.False(t, r.Success)
			require.Equal(t, "dlq rejected", r.ErrorText())
			require.EqualValues(t, -1, x.DB.Committed(t, x.queue, lane, "g"), "the cursor does not move")
			require.Empty(t, x.DLQ(t, x.queue, ""))
		})
	}
}

// TestDeadLettersOutliveEveryRule files a dead letter and then lets every rule
// take what it can; only the deletion of the queue removes it.
func TestDeadLettersOutliveEveryRule(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600,"completedRetentionSeconds":3600,"maxWaitTimeSeconds":3600}`)
	x.push(t, 2)
	p := x.lease(t, "g", 1)
	require.True(t, x.AckOK(t, "g", p.Acks("dlq")...)[0].DLQ)
	x.DB.Exec(t, `UPDATE queen.log_dlq SET failed_at = failed_at - interval '1000 days'`)
	abandonLanes(t, x.DB, x.queue)
	x.cycle(t)
	x.requireStart(t, 2)
	letters := x.DLQ(t, x.queue, "")
	require.Len(t, letters, 1)
	require.Equal(t, "0", string(letters[0].Data), "with its payload")
	require.Equal(t, p.PartitionID, x.pid(t, lane), "and its partition is kept for it")

	x.DeleteQueue(t, x.queue)
	require.Zero(t, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.log_dlq`))
}

// TestQueuesAreNeverRemoved sweeps a queue whose only lane goes.
func TestQueuesAreNeverRemoved(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	x.push(t, 1)
	abandonLanes(t, x.DB, x.queue)
	x.DB.Exec(t, `UPDATE queen.queues SET created_at = created_at - interval '1000 days'`)
	x.cycle(t)
	require.Zero(t, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.log_partitions`))
	require.True(t, x.DB.HasQueue(t, x.queue))
	requireOptions(t, x, map[string]any{"retentionEnabled": true, "retentionSeconds": 3600.0})
}
