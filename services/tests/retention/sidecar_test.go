package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const unresolvedText = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"

// hashes counts the sidecar rows of the test's lane.
func (c *cell) hashes(t *testing.T) int {
	t.Helper()
	return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, c.pid(t, lane))
}

// TestSidecarWindow is the greatest of the dedup window, the window of consumed
// messages, and 900 s, whether retention is on or off. Rows 0 to 2 are a little
// older than it, the rest is a little younger.
func TestSidecarWindow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options string
		seconds int
	}{
		"the dedup window by default":              {`{}`, 3600},
		"a short dedup window":                     {`{"dedupWindowSeconds":60}`, 900},
		"no deduplication":                         {`{"dedupWindowSeconds":0}`, 900},
		"a long dedup window":                      {`{"dedupWindowSeconds":90000}`, 90000},
		"the window of consumed messages":          {`{"dedupWindowSeconds":60,"completedRetentionSeconds":5000}`, 5000},
		"the window of consumed messages, shorter": {`{"dedupWindowSeconds":2000,"completedRetentionSeconds":1000,"retentionEnabled":true}`, 2000},
		"retention by age does not matter":         {`{"dedupWindowSeconds":60,"retentionEnabled":true,"retentionSeconds":5000}`, 900},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := shared(t)
			x.Configure(t, x.queue, c.options)
			x.push(t, 5)
			pid := []string{x.pid(t, lane)}
			// A minute is what the test may take.
			ageLanes(t, x.DB, pid, 4, time.Duration(c.seconds-60)*time.Second, sidecar)
			ageLanes(t, x.DB, pid, 2, time.Minute, sidecar)
			x.cycle(t)
			require.Equal(t, marks{start: 0, last: 4, txns: 3}, x.marks(t), "the watermark stands on the boundary")
			require.Equal(t, 2, x.hashes(t))
			requireSound(t, x.DB)
			require.Empty(t, history(t, x.DB, pid[0]), "no message went")
			require.Equal(t, numbers(0, 5), x.all(t, "g"))
		})
	}
}

// TestSidecarIsPurgedInBatches takes more rows than a step.
func TestSidecarIsPurgedInBatches(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.push(t, 11)
	x.age(t, 8, longAgo)
	traceChanges(t, x.DB)
	x.cycle(t, "RETENTION_BATCH_SIZE=4")
	require.EqualValues(t, 9, x.marks(t).txns)
	requireSound(t, x.DB)
	var rows []int
	transactions := map[int64]bool{}
	for _, c := range changes(t, x.DB, "DELETE log_txns") {
		rows = append(rows, c.Rows)
		transactions[c.Transaction] = true
	}
	require.Equal(t, []int{4, 4, 1}, rows)
	require.Len(t, transactions, 3)
}

// TestSidecarRowsAreWholeSegments ages a segment of five messages: its one row
// goes as it is.
func TestSidecarRowsAreWholeSegments(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.together(t, 5)
	x.push(t, 1)
	x.age(t, 4, longAgo)
	x.cycle(t)
	require.Equal(t, marks{start: 0, last: 5, txns: 5}, x.marks(t))
	requireSound(t, x.DB)
}

// TestSidecarDoesNotGrowWithTheBacklog keeps a thousand messages and the hashes
// of the last two only.
func TestSidecarDoesNotGrowWithTheBacklog(t *testing.T) {
	t.Parallel()
	x := shared(t)
	for range 10 {
		x.together(t, 100)
	}
	x.push(t, 2)
	x.age(t, 999, longAgo)
	x.cycle(t)
	require.Equal(t, marks{start: 0, last: 1001, txns: 1000}, x.marks(t))
	require.Equal(t, 2, x.hashes(t))
	require.Len(t, x.all(t, "g"), 1002)
}

// TestLateAckBeyondTheWindowIsUnresolvable delivers two messages, purges their
// hashes, and acknowledges one: it is refused and the messages come again.
func TestLateAckBeyondTheWindowIsUnresolvable(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.push(t, 3)
	p := x.lease(t, "g", 2)
	x.age(t, 1, longAgo)
	x.cycle(t)
	require.Equal(t, 1, x.hashes(t))

	for _, status := range []string{"completed", "failed"} {
		r := x.Ack(t, "g", p.Messages[0].Ack(status))[0]
		require.False(t, r.Success)
		require.Equal(t, unresolvedText, r.ErrorText())
	}
	require.EqualValues(t, -1, x.DB.Committed(t, x.queue, lane, "g"))
	x.DB.ExpireLeases(t, x.queue)
	require.Equal(t, numbers(0, 3), x.Pop(t, x.queue, "consumerGroup=g&batch=10").Payloads(), "they are delivered again")
}

// TestLateAckInsideTheWindowResolves is the same with the dedup window raised
// beyond the age of the messages.
func TestLateAckInsideTheWindowResolves(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"dedupWindowSeconds":7200}`)
	x.push(t, 3)
	p := x.lease(t, "g", 2)
	x.age(t, 1, 7000*time.Second)
	x.cycle(t)
	require.Equal(t, 3, x.hashes(t))
	x.AckOK(t, "g", p.Messages[0].Ack("completed"))
	require.EqualValues(t, 0, x.DB.Committed(t, x.queue, lane, "g"))
}

// TestHashThatOutlivesItsMessageIsHarmless evicts messages whose hashes stay.
func TestHashThatOutlivesItsMessageIsHarmless(t *testing.T) {
	t.Parallel()
	x := shared(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600,"dedupWindowSeconds":360000}`)
	id := x.PushQueued(t, harness.Item{Queue: x.queue, Partition: lane, TransactionID: "first", Payload: 0})[0]
	x.push(t, 2)
	p := x.lease(t, "g", 2)
	x.age(t, 1, 2*hour*time.Second)
	x.cycle(t)
	require.Equal(t, marks{start: 2, last: 2, txns: 0}, x.marks(t))
	requireSound(t, x.DB)

	r := x.Push(t, harness.Item{Queue: x.queue, Partition: lane, TransactionID: id, Payload: 9})[0]
	require.Equal(t, "duplicate", r.Status, "it is remembered as long as its hash")
	x.AckOK(t, "g", p.Messages[0].Ack("completed"))
	require.EqualValues(t, 0, x.DB.Committed(t, x.queue, lane, "g"))
	x.AckOK(t, "g", p.Messages[1].Ack("completed"))
	require.Equal(t, numbers(1, 2), x.Pop(t, x.queue, "consumerGroup=g").Payloads())
}

// TestPurgedIdMayComeAgain pushes an id whose hash was purged.
func TestPurgedIdMayComeAgain(t *testing.T) {
	t.Parallel()
	x := shared(t)
	item := harness.Item{Queue: x.queue, Partition: lane, TransactionID: "a", Payload: 0}
	x.PushQueued(t, item)
	x.age(t, 0, 3500*time.Second)
	x.cycle(t)
	require.Equal(t, "duplicate", x.Push(t, item)[0].Status, "inside the window")
	x.age(t, 0, time.Hour)
	x.cycle(t)
	require.Zero(t, x.hashes(t))
	x.PushQueued(t, item)
	require.Equal(t, marks{start: 0, last: 1, txns: 1}, x.marks(t))
	requireSound(t, x.DB)
}

// TestSidecarIsPurgedOfEveryLane includes lanes of queues that nobody configured.
func TestSidecarIsPurgedOfEveryLane(t *testing.T) {
	t.Parallel()
	x := shared(t)
	for i := range 12 {
		x.PushEach(t, x.queue, fmt.Sprintf("lane-%d", i), 2)
	}
	ageAll(t, x.DB, x.queue)
	x.cycle(t)
	require.Zero(t, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.log_txns AS t JOIN queen.log_partitions AS p ON p.id = t.partition_id
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, x.queue))
	require.Equal(t, 24, harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.log_segments AS t JOIN queen.log_partitions AS p ON p.id = t.partition_id
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, x.queue))
	requireSound(t, x.DB)
}
