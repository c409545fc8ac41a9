package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// suiteWait is what the suites of the existing clients allow after the last push
// for data with a window of ten seconds.
const suiteWait = 15 * time.Second

// TestClientSuites does what the suites of the existing clients do about
// retention, with the sweep that they are meant to be run with.
func TestClientSuites(t *testing.T) {
	t.Parallel()
	b := harness.Start(t)
	harness.StartMaintainer(t, b.DB, "RETENTION_INTERVAL=2000")
	start := func(t *testing.T, options string) *cell {
		t.Helper()
		x := &cell{Broker: b, queue: queueName(t)}
		x.Configure(t, x.queue, options)
		return x
	}
	t.Run("unconsumed messages of ten seconds", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"retentionEnabled":true,"retentionSeconds":10,"completedRetentionSeconds":5}`)
		x.push(t, 100)
		x.requireGone(t, 100, byAge)
	})
	t.Run("consumed messages of five seconds", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"retentionEnabled":true,"retentionSeconds":300,"completedRetentionSeconds":5}`)
		x.push(t, 20)
		x.consume(t, "g", 20)
		harness.Eventually(t, suiteWait, "they are gone", func() bool { return x.marks(t).start == 20 })
		require.Equal(t, map[string]int64{byConsumed: 20}, x.removed(t))
	})
	t.Run("eviction after ten seconds", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"maxWaitTimeSeconds":10}`)
		x.push(t, 100)
		x.requireGone(t, 100, byMaxWait)
	})
	t.Run("eviction of what is leased", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"maxWaitTimeSeconds":10,"leaseTime":300}`)
		x.push(t, 5)
		x.lease(t, "g", 5)
		x.requireGone(t, 5, byMaxWait)
	})
	t.Run("a consumer reads on across an eviction", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"maxWaitTimeSeconds":10}`)
		x.push(t, 3)
		x.consume(t, "g", 1)
		x.requireGone(t, 3, byMaxWait)
		x.PushQueued(t, harness.Item{Queue: x.queue, Partition: lane, Payload: "after"})
		require.Equal(t, []string{`"after"`}, x.Pop(t, x.queue, "consumerGroup=g&batch=10&wait=true&timeout=5000").Payloads())
	})
	t.Run("acks across the sweep", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"dedupWindowSeconds":60}`)
		x.push(t, 4)
		p := x.lease(t, "g", 4)
		ageLanes(t, b.DB, []string{p.PartitionID}, 1, 20*time.Minute, sidecar)
		ageLanes(t, b.DB, []string{p.PartitionID}, 3, 10*time.Minute, sidecar)
		harness.Eventually(t, suiteWait, "the window has passed", func() bool { return x.marks(t).txns == 2 })
		require.Equal(t, unresolvedText, x.Ack(t, "g", p.Messages[1].Ack("completed"))[0].ErrorText())
		require.EqualValues(t, -1, b.DB.Committed(t, x.queue, lane, "g"))
		x.AckOK(t, "g", p.Messages[3].Ack("completed"))
		require.EqualValues(t, 3, b.DB.Committed(t, x.queue, lane, "g"), "one that is younger settles all before it")
	})
	t.Run("a group's mark of the last empty look does not hide messages", func(t *testing.T) {
		t.Parallel()
		x := start(t, `{"maxWaitTimeSeconds":10}`)
		x.push(t, 2)
		x.consume(t, "g", 2)
		x.RequireNone(t, harness.PopPath(x.queue, "consumerGroup=g"))
		b.DB.Exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at)
			SELECT id, 'g', now() FROM queen.queues WHERE name = $1
			ON CONFLICT (queue_id, consumer_group) DO UPDATE SET last_empty_scan_at = now(), updated_at = now()`, x.queue)
		x.requireGone(t, 2, byMaxWait)
		x.PushQueued(t, harness.Item{Queue: x.queue, Partition: lane, Payload: 2})
		require.Equal(t, numbers(2, 3), x.Pop(t, x.queue, "consumerGroup=g&batch=10").Payloads())
	})
}

// requireGone waits as the suites do and requires that n messages have left by a
// rule with a window of ten seconds, none of them before it had passed.
func (c *cell) requireGone(t *testing.T, n int64, rule string) {
	t.Helper()
	pid := c.pid(t, lane)
	last := harness.Value[time.Time](t, c.DB, `SELECT max(created_at) FROM queen.log_segments WHERE partition_id = $1`, pid)
	first := harness.Value[time.Time](t, c.DB, `SELECT min(created_at) FROM queen.log_segments WHERE partition_id = $1`, pid)
	harness.Eventually(t, suiteWait+5*time.Second, "they are gone", func() bool { return c.marks(t).start == n })
	var began, ended time.Time
	c.DB.Row(t, `SELECT min(executed_at), max(executed_at) FROM queen.retention_history WHERE partition_id = $1`, []any{pid}, []any{&began, &ended})
	require.Less(t, ended.Sub(last), suiteWait)
	require.GreaterOrEqual(t, began.Sub(first), 10*time.Second)
	require.Equal(t, map[string]int64{rule: n}, c.removed(t))
	c.PopPartition(t, c.queue, lane, "batch=100&consumerGroup="+queueName(t)).RequireEmpty(t)
	requireSound(t, c.DB)
}

// TestEvictionIsPunctualWhateverTheInterval pushes for four seconds to a queue
// that lets nothing wait for longer than ten. The maintainer that comes then has
// to make turns between its cycles where these are too far apart.
func TestEvictionIsPunctualWhateverTheInterval(t *testing.T) {
	t.Parallel()
	for _, interval := range []string{"2000", "", "60000"} {
		t.Run(interval, func(t *testing.T) {
			t.Parallel()
			x := own(t)
			x.Configure(t, x.queue, `{"maxWaitTimeSeconds":10}`)
			pushes := time.NewTicker(500 * time.Millisecond)
			defer pushes.Stop()
			for range 8 {
				x.push(t, 1)
				<-pushes.C
			}
			harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL="+interval)
			harness.Eventually(t, suiteWait+5*time.Second, "all are evicted", func() bool { return x.marks(t).start == 8 })
			last := harness.Value[time.Time](t, x.DB, `SELECT last_write_at FROM queen.log_partitions`)
			ended := harness.Value[time.Time](t, x.DB, `SELECT max(executed_at) FROM queen.retention_history`)
			require.Less(t, ended.Sub(last), suiteWait)
			require.Equal(t, map[string]int64{byMaxWait: 8}, x.removed(t))
		})
	}
}

// TestEvictionIsPunctualBesideABacklog lets another queue hold more than a cycle
// gets through.
func TestEvictionIsPunctualBesideABacklog(t *testing.T) {
	t.Parallel()
	x := own(t)
	backlog := x.another(t)
	backlog.Configure(t, backlog.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	makeBacklog(t, backlog, 200, 100)
	x.Configure(t, x.queue, `{"maxWaitTimeSeconds":10}`)
	slowSteps(t, x.DB, 30*time.Millisecond)
	harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=2000", "RETENTION_BATCH_SIZE=10")
	x.push(t, 20)
	x.requireGone(t, 20, byMaxWait)
	left := harness.Value[int](t, x.DB, `SELECT count(*) FROM queen.log_segments`)
	require.Positive(t, left, "the backlog was there all the time")
}

// makeBacklog writes old segments to n lanes of a queue, past the broker: one push
// each makes the lane and the first segment.
func makeBacklog(t *testing.T, x *cell, n, rows int) {
	t.Helper()
	items := make([]harness.Item, n)
	for i := range items {
		items[i] = harness.Item{Queue: x.queue, Partition: fmt.Sprintf("lane-%03d", i), Payload: i}
	}
	x.PushQueued(t, items...)
	for _, table := range []string{"queen.log_segments", "queen.log_txns"} {
		column := map[string]string{"queen.log_segments": "blob", "queen.log_txns": "hashes"}[table]
		x.DB.Exec(t, `INSERT INTO `+table+` (partition_id, base_offset, end_offset, created_at, `+column+`)
			SELECT s.partition_id, g, g, s.created_at, s.`+column+`
			FROM `+table+` AS s JOIN queen.log_partitions AS p ON p.id = s.partition_id
			JOIN queen.queues AS q ON q.id = p.queue_id, generate_series(1, $2::int - 1) AS g
			WHERE q.name = $1`, x.queue, rows)
	}
	x.DB.Exec(t, `UPDATE queen.log_partitions SET last_offset = $2::int - 1
		WHERE queue_id = (SELECT id FROM queen.queues WHERE name = $1)`, x.queue, rows)
	ageAll(t, x.DB, x.queue)
}
