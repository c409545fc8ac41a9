package retention_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	huntTime     = 12 * time.Second
	longHuntTime = 2 * time.Minute
)

// TestNoDeadlockAndNoLostWrite lets everything that locks lanes meet on the same
// ones: bundled pushes, transactions, consumers, seeks, the sweep, evictions, the
// removal of empty lanes, the deletion of queues, and the statistics.
//
// One queue loses messages by the two rules, one by eviction and with that its
// lanes, and one is deleted again and again. Of the first two every message is
// accounted for at the end.
func TestNoDeadlockAndNoLostWrite(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 2, Server: true})
	h := &hunt{
		cell:     &cell{Broker: stage.Broker, queue: queueName(t), sweep: new(sync.Mutex)},
		aged:     &ledger{queue: "aged", lanes: 20},
		fleeting: &ledger{queue: "fleeting", lanes: 400},
		doomed:   &ledger{queue: "doomed", lanes: 10},
	}
	followLanes(t, h.DB)
	h.Configure(t, h.aged.queue, `{"retentionEnabled":true,"retentionSeconds":5,"completedRetentionSeconds":1,"retryLimit":1000000}`)
	h.Configure(t, h.fleeting.queue, `{"maxWaitTimeSeconds":1,"retryLimit":1000000}`)
	for range 2 {
		harness.StartMaintainer(t, h.DB, "RETENTION_INTERVAL=200", "RETENTION_BATCH_SIZE=3", "STATS_INTERVAL_MS=1000", "RETAINED_BYTES_INTERVAL_MS=1000")
	}
	ctx, x := newTurmoil(t)
	h.start(ctx, x)
	length := huntTime
	if harness.Long() {
		length = longHuntTime
	}
	select {
	case <-t.Context().Done():
	case <-time.After(length):
	}
	harness.Eventually(t, time.Minute, "every kind of removal has been met", func() bool { return h.sawEveryKind(t) })
	x.stop()
	x.requireTurns()
	h.judge(t)
}

type hunt struct {
	*cell
	aged, fleeting, doomed *ledger
}

func (h *hunt) ledgers() []*ledger { return []*ledger{h.aged, h.fleeting, h.doomed} }

func (h *hunt) start(ctx context.Context, x *turmoil) {
	for range 4 {
		x.loop(ctx, "push", 10*time.Millisecond, h.push)
	}
	for range 2 {
		x.loop(ctx, "transaction", 20*time.Millisecond, h.transact)
		x.loop(ctx, "consume", 10*time.Millisecond, h.consumeSome)
	}
	x.loop(ctx, "seek", 50*time.Millisecond, h.seek)
	x.loop(ctx, "delete a queue", 200*time.Millisecond, h.deleteQueue)
	x.loop(ctx, "remove empty lanes", 50*time.Millisecond, h.removeLanes)
	x.loop(ctx, "refresh the statistics", 100*time.Millisecond, h.refresh)
	x.loop(ctx, "read a queue", 100*time.Millisecond, h.readQueue)
}

// push sends one request for lanes of all queues.
func (h *hunt) push(ctx context.Context, rng *rand.Rand) error {
	for _, l := range h.ledgers() {
		if rng.IntN(2) == 0 {
			continue
		}
		if err := l.push(ctx, h.Broker, l.items(rng, 8)); err != nil {
			return err
		}
	}
	return nil
}

// transact acknowledges what it popped and pushes to other queues, all or nothing.
func (h *hunt) transact(ctx context.Context, rng *rand.Rand) error {
	p, err := h.TryPop(ctx, harness.PopPath(h.aged.queue, "batch=4&partitions=2&consumerGroup=mover"))
	if err != nil {
		return err
	}
	var tx harness.Transaction
	for _, ack := range p.Acks("completed") {
		ack.ConsumerGroup = "mover"
		tx.Operations = append(tx.Operations, harness.AckOp(ack))
	}
	into := []*ledger{h.aged, h.fleeting}
	pushed := map[*ledger]int{}
	for _, l := range into {
		items := l.items(rng, 4)
		pushed[l] = len(items)
		tx.Operations = append(tx.Operations, harness.PushOp(items...))
	}
	answer, err := h.TryTransact(context.WithoutCancel(ctx), tx)
	if err != nil {
		return err
	}
	for _, l := range into {
		if answer.Success {
			l.kept.Add(int64(pushed[l]))
		}
	}
	if !answer.Success && answer.Reason != "ack_rejected" { // a seek took the lease away
		return fmt.Errorf("transaction: %s", answer.Answer)
	}
	return nil
}

func (h *hunt) consumeSome(ctx context.Context, rng *rand.Rand) error {
	l := h.ledgers()[rng.IntN(3)]
	group := fmt.Sprintf("g%d", rng.IntN(2))
	p, err := h.TryPop(ctx, harness.PopPath(l.queue, fmt.Sprintf("batch=%d&partitions=4&leaseSeconds=2&consumerGroup=%s", 1+rng.IntN(30), group)))
	if err != nil || len(p.Messages) == 0 {
		return err
	}
	acks := p.Acks("completed")[:1+rng.IntN(len(p.Messages))]
	if rng.IntN(4) == 0 {
		acks[len(acks)-1].Status = "failed"
	}
	_, err = h.TryAck(ctx, group, acks...) // a refusal is no fault: much may have happened
	return err
}

// seek moves the cursors of a group as the administrative call does: lanes first,
// ascending, then the cursors.
func (h *hunt) seek(ctx context.Context, rng *rand.Rand) error {
	tx, err := h.DB.Pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	queue, group := h.ledgers()[rng.IntN(2)].queue, fmt.Sprintf("g%d", rng.IntN(2))
	if _, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE queue_id = (SELECT id FROM queen.queues WHERE name = $1)
		ORDER BY id FOR NO KEY UPDATE`, queue); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `
		WITH mine AS (
			SELECT c.partition_id, c.consumer_group FROM queen.log_consumers AS c
			JOIN queen.log_partitions AS p ON p.id = c.partition_id JOIN queen.queues AS q ON q.id = p.queue_id
			WHERE q.name = $1 AND c.consumer_group = $2
			ORDER BY c.partition_id FOR UPDATE OF c)
		UPDATE queen.log_consumers AS c SET committed = CASE WHEN $3 THEN p.last_offset ELSE p.log_start - 1 END, batch_end = NULL,
			worker_id = NULL, lease_expires_at = NULL, lease_acquired_at = NULL, batch_retry_count = 0, attempt_offset = NULL, attempt_count = 0
		FROM mine AS m JOIN queen.log_partitions AS p ON p.id = m.partition_id
		WHERE c.partition_id = m.partition_id AND c.consumer_group = m.consumer_group`, queue, group, rng.IntN(2) == 0); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (h *hunt) deleteQueue(ctx context.Context, _ *rand.Rand) error {
	a, err := h.Call(ctx, "DELETE", "/api/v1/resources/queues/"+h.doomed.queue, nil)
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("delete: %s", a)
	}
	return err
}

// removeLanes is the step of the cleanup with a window of a second.
func (h *hunt) removeLanes(ctx context.Context, rng *rand.Rand) error {
	_, err := h.DB.Pool.Exec(ctx, `SELECT queen.log_partition_cleanup_step_v1(clock_timestamp() - interval '1 second', $1)`, 1+rng.IntN(10))
	return err
}

func (h *hunt) refresh(ctx context.Context, _ *rand.Rand) error {
	_, err := h.DB.Pool.Exec(ctx, `SELECT queen.log_refresh_all_stats_v1()`)
	return err
}

func (h *hunt) readQueue(ctx context.Context, rng *rand.Rand) error {
	_, err := h.Call(ctx, "GET", "/api/v1/resources/queues/"+h.ledgers()[rng.IntN(3)].queue, nil)
	return err
}

// judge looks for deadlocks, lost writes and wrong notes.
func (h *hunt) judge(t *testing.T) {
	t.Helper()
	log, err := os.ReadFile(harness.Value[string](t, h.DB, `SHOW data_directory`) + ".log")
	require.NoError(t, err)
	require.NotContains(t, string(log), "deadlock detected")
	require.Zero(t, harness.Value[int](t, h.DB, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`))
	h.aged.requireNothingLost(t, h.DB)
	h.fleeting.requireNothingLost(t, h.DB)
	requireSound(t, h.DB)
	again := harness.Value[int](t, h.DB, `SELECT count(*) - count(DISTINCT x.name) FROM public.lanes AS x JOIN queen.queues AS q ON q.id = x.queue_id
		WHERE q.name = $1`, h.fleeting.queue)
	t.Logf("%d lanes were removed and made again", again)
	require.Positive(t, again)
	for kind, n := range h.kinds(t) {
		t.Logf("%s: %d", kind, n)
	}
}

// sawEveryKind waits on a busy machine, too, where sweeps follow each other slowly.
func (h *hunt) sawEveryKind(t *testing.T) bool {
	t.Helper()
	kinds := h.kinds(t)
	for _, kind := range []string{byAge, byConsumed, byMaxWait, byCleanup} {
		if kinds[kind] == 0 {
			return false
		}
	}
	return true
}

// kinds counts the history rows of each type.
func (h *hunt) kinds(t *testing.T) map[string]int {
	t.Helper()
	return harness.Value[map[string]int](t, h.DB, `SELECT jsonb_object_agg(k.retention_type, k.n) FROM (
		SELECT retention_type, count(*) AS n FROM queen.retention_history GROUP BY 1) AS k`)
}

// TestPushThatMeetsACleanupIsStoredUnderANewID holds a push between the look-up of
// its lane and the lock on it while the lane is removed.
func TestPushThatMeetsACleanupIsStoredUnderANewID(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.emptied(t, untouched)
	x.cycle(t, "QUEEN_PARTITION_CLEANUP_ENABLED=false")
	old := x.pid(t, lane)
	tx, err := x.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	removed := 0
	require.NoError(t, tx.QueryRow(t.Context(),
		`SELECT (queen.log_partition_cleanup_step_v1(now() - interval '30 days', 10) ->> 'deleted')::int`).Scan(&removed))
	require.Equal(t, 1, removed)
	pushed := make(chan error, 1)
	go func() {
		results, err := x.TryPush(t.Context(), harness.Item{Queue: x.queue, Partition: lane, Payload: 7})
		if err == nil && results[0].Status != "queued" {
			err = fmt.Errorf("%+v", results[0])
		}
		pushed <- err
	}()
	harness.Eventually(t, 10*time.Second, "the push waits for the lane", func() bool {
		return harness.Value[bool](t, x.DB, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'queen-broker' AND wait_event_type = 'Lock')`)
	})
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-pushed)
	require.NotEqual(t, old, x.pid(t, lane))
	require.Equal(t, numbers(7, 8), x.all(t, "g"))
	requireSound(t, x.DB)
}

// TestPushesGoOnWhileTheirLaneIsSwept pushes to a lane all the time while a
// backlog of it is deleted.
func TestPushesGoOnWhileTheirLaneIsSwept(t *testing.T) {
	t.Parallel()
	x := own(t)
	x.Configure(t, x.queue, `{"retentionEnabled":true,"retentionSeconds":3600}`)
	makeBacklog(t, x, 1, 20000)
	first := func() int64 { return harness.Value[int64](t, x.DB, `SELECT log_start FROM queen.log_partitions`) }
	harness.StartMaintainer(t, x.DB)
	slowest, pushes := time.Duration(0), 0
	for first() < 20000 {
		began := time.Now()
		x.PushQueued(t, harness.Item{Queue: x.queue, Partition: "lane-000", Payload: 1})
		slowest = max(slowest, time.Since(began))
		pushes++
	}
	t.Logf("%d pushes, the slowest took %s", pushes, slowest)
	require.Greater(t, pushes, 10)
	require.Less(t, slowest, 2*time.Second)
	requireSound(t, x.DB)
}
