package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// metricsBench is a bench with one lane of each of two queues.
type metricsBench struct {
	*bench
	a, b uuid.UUID // lanes of the queues "a" and "b"
}

func setupMetrics(t *testing.T) *metricsBench {
	t.Helper()
	b := &metricsBench{bench: setup(t)}
	b.a = b.queued(fresh("a", "p", 1)).PartitionID
	b.b = b.queued(fresh("b", "p", 1)).PartitionID
	b.exec(`DELETE FROM queen.partition_events`)
	return b
}

// flush writes one flush of a replica for a minute.
func (b *metricsBench) flush(host string, queues ...store.QueueMetrics) int {
	b.t.Helper()
	n, err := b.store.FlushMetrics(b.t.Context(), &store.MetricsFlush{
		ID: uuid.New(), Replica: store.Replica{Service: "broker", Host: host}, Interval: time.Minute, Queues: queues,
	})
	require.NoError(b.t, err)
	return n
}

// named is a row about a queue of the default tenant.
func named(queue string, c store.Counted) store.QueueMetrics {
	tenant := store.DefaultTenant()
	return store.QueueMetrics{Tenant: &tenant, Queue: &queue, Counted: c}
}

// laneOf is a row about the queue of a lane.
func laneOf(id uuid.UUID, c store.Counted) store.QueueMetrics {
	return store.QueueMetrics{Partition: &id, Counted: c}
}

// minute is a row of queue_lag_metrics, or the sum of those of a queue, for a flush
// may meet the end of a minute. NULL is -1.
type minute struct {
	PushRequests, PushMessages, PopRequests, PopMessages, PopEmpty  int64
	AckRequests, AckSuccess, AckFailed, Transactions, Created, Gone int64
	AvgLag, MaxLag, Parked                                          float64
	Partitions                                                      int64
}

func (b *metricsBench) minute(queue string) (m minute) {
	b.t.Helper()
	b.one([]any{
		&m.PushRequests, &m.PushMessages, &m.PopRequests, &m.PopMessages, &m.PopEmpty,
		&m.AckRequests, &m.AckSuccess, &m.AckFailed, &m.Transactions, &m.Created, &m.Gone,
		&m.AvgLag, &m.MaxLag, &m.Parked, &m.Partitions,
	}, `SELECT sum(m.push_requests)::bigint, sum(m.push_messages)::bigint, sum(m.pop_requests)::bigint, sum(m.pop_messages)::bigint,
			sum(m.pop_empty)::bigint, sum(m.ack_requests)::bigint, sum(m.ack_success)::bigint, sum(m.ack_failed)::bigint,
			sum(m.transactions)::bigint, sum(m.partitions_created)::bigint, sum(m.partitions_deleted)::bigint,
			coalesce(sum(m.avg_lag_ms * m.pop_messages) / sum(m.pop_messages), -1), coalesce(max(m.max_lag_ms), -1),
			sum(m.parked_count), coalesce(max(m.partition_count), -1)
		FROM queen.queue_lag_metrics AS m JOIN queen.queues AS q ON q.id = m.queue_id WHERE q.name = $1`, queue)
	return m
}

func TestReplicasAddUpInTheMinuteOfAQueue(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	one := named("a", store.Counted{
		PushRequests: 1, PushMessages: 10, PopRequests: 4, PopMessages: 30, PopEmpty: 1,
		LagMicros: 30 * 20_000, MaxLagMicros: 70_000, AckRequests: 2, AckSuccess: 25, AckFailed: 5, Transactions: 3,
	})
	one.Parked = 2
	require.Equal(t, 1, b.flush("one", one))
	two := named("a", store.Counted{
		PushRequests: 2, PushMessages: 5, PopRequests: 2, PopMessages: 10, LagMicros: 10 * 60_000, MaxLagMicros: 65_500,
		AckRequests: 1, AckSuccess: 9, AckFailed: 1, Transactions: 1,
	})
	two.Parked = 3
	require.Equal(t, 1, b.flush("two", two))
	require.Equal(t, minute{
		PushRequests: 3, PushMessages: 15, PopRequests: 6, PopMessages: 40, PopEmpty: 1,
		AckRequests: 3, AckSuccess: 34, AckFailed: 6, Transactions: 4,
		AvgLag: (30*20 + 10*60) / 40.0, MaxLag: 70, Parked: 5, Partitions: -1,
	}, b.minute("a"))
	require.Equal(t, int64(2), b.count(`SELECT sum(parked_count)::bigint FROM queen.queue_parked_replica WHERE hostname = 'one'`))
	require.Equal(t, int64(3), b.count(`SELECT sum(parked_count)::bigint FROM queen.queue_parked_replica WHERE hostname = 'two'`))
}

func TestAMinuteWithoutPopsHasNoLag(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	for range 2 {
		b.flush("one", named("a", store.Counted{PushRequests: 1, PushMessages: 1}))
	}
	require.Equal(t, minute{PushRequests: 2, PushMessages: 2, AvgLag: -1, MaxLag: -1, Partitions: -1}, b.minute("a"))
	b.flush("one", named("a", store.Counted{PopRequests: 1, PopMessages: 2, LagMicros: 3000, MaxLagMicros: 2000}))
	m := b.minute("a")
	require.Equal(t, []float64{1.5, 2}, []float64{m.AvgLag, m.MaxLag})
	require.Zero(t, b.count(`SELECT count(*) FROM queen.queue_parked_replica`), "nothing was parked")
}

func TestAFlushCountsAsPartOfItsMinute(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	row := named("a", store.Counted{})
	row.Parked = 6
	for _, c := range []struct {
		interval time.Duration
		parked   float64
	}{{time.Second, 0.1}, {30 * time.Second, 3.1}, {time.Minute, 9.1}, {time.Hour, 15.1}} {
		_, err := b.store.FlushMetrics(t.Context(), &store.MetricsFlush{
			ID: uuid.New(), Interval: c.interval, Queues: []store.QueueMetrics{row},
		})
		require.NoError(t, err)
		require.InDelta(t, c.parked, b.minute("a").Parked, 1e-9, c.interval)
	}
}

func TestALaneStandsForItsQueue(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	second := b.queued(fresh("a", "second", 1)).PartitionID
	n := b.flush("one",
		laneOf(second, store.Counted{AckRequests: 1, AckSuccess: 1}),
		named("a", store.Counted{PushMessages: 2}),
		laneOf(b.b, store.Counted{AckFailed: 4}),
		laneOf(b.a, store.Counted{PopMessages: 3, LagMicros: 3000, MaxLagMicros: 1000}),
	)
	require.Equal(t, 2, n)
	require.Equal(t, minute{PushMessages: 2, PopMessages: 3, AckRequests: 1, AckSuccess: 1, AvgLag: 1, MaxLag: 1, Partitions: -1}, b.minute("a"))
	require.Equal(t, minute{AckFailed: 4, AvgLag: -1, MaxLag: -1, Partitions: -1}, b.minute("b"))
}

func TestTheMinuteKnowsTheLastCountOfPartitions(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.exec(`INSERT INTO queen.stats (stat_type, stat_key, queue_id, child_count) SELECT 'queue', id::text, id, 7 FROM queen.queues WHERE name = 'a'`)
	b.flush("one", named("a", store.Counted{PushMessages: 1}), named("b", store.Counted{PushMessages: 1}))
	require.Equal(t, int64(7), b.minute("a").Partitions)
	require.Equal(t, int64(-1), b.minute("b").Partitions)
}

func TestAQueueThatIsGoneIsSkipped(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.flush("one", named("a", store.Counted{PushMessages: 1}), named("b", store.Counted{PushMessages: 1}))
	_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "a")
	require.NoError(t, err)
	require.Equal(t, int64(1), b.count(`SELECT count(DISTINCT queue_id) FROM queen.queue_lag_metrics`), "the rows go with their queue")
	n := b.flush("one",
		named("a", store.Counted{PushMessages: 1}), laneOf(b.a, store.Counted{AckSuccess: 1}), laneOf(uuid.New(), store.Counted{AckSuccess: 1}),
		named("b", store.Counted{PushMessages: 1}), named("never heard of", store.Counted{PopEmpty: 1}),
	)
	require.Equal(t, 1, n)
	require.Equal(t, int64(2), b.minute("b").PushMessages)
}

// A deletion that has begun is waited for: its outcome decides.
func TestAQueueBeingDeletedIsSkippedOnceItIsGone(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	conn, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT queen.delete_queue_v1('a')`)
	require.NoError(t, err)

	var g errgroup.Group
	written := 0
	g.Go(func() (err error) {
		written, err = b.store.FlushMetrics(t.Context(), &store.MetricsFlush{ID: uuid.New(), Queues: []store.QueueMetrics{
			named("a", store.Counted{PushMessages: 1}), named("b", store.Counted{PushMessages: 1}),
		}})
		return err
	})
	require.Eventually(t, func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%metrics_flush_v1%'
			AND datname = current_database() AND pid <> pg_backend_pid()`) == 1
	}, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, g.Wait())
	require.Equal(t, 1, written)
}

func TestARepeatedFlushIsWrittenOnce(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	f := &store.MetricsFlush{ID: uuid.New(), Queues: []store.QueueMetrics{named("a", store.Counted{PushMessages: 5})}}
	f.Worker.PushMessages = 5
	var g errgroup.Group
	for range 4 { // at the same time: some of them are told to come again
		g.Go(func() error {
			for {
				_, err := b.store.FlushMetrics(t.Context(), f)
				if store.Classify(err) != store.Transient {
					return err
				}
			}
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, int64(5), b.minute("a").PushMessages)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.system_metrics`))
	require.Equal(t, int64(5), b.count(`SELECT push_messages FROM queen.worker_metrics_summary`))
}

func TestTheTotalsOutliveTheRowsOfTheReplicas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lag := 1.5
	f := store.MetricsFlush{
		Replica: store.Replica{Service: "broker", Host: "one", Worker: 0, Port: 6632, PID: 17}, Interval: 61 * time.Second,
		Worker: store.WorkerMetrics{
			Counted: store.Counted{
				PushRequests: 1, PushMessages: 2, PopRequests: 3, PopMessages: 4, PopEmpty: 5, LagMicros: 10_000, MaxLagMicros: 7_000,
				AckRequests: 6, AckSuccess: 7, AckFailed: 8, Transactions: 9,
			},
			DeadLetters: 10, DatabaseErrors: 11, AvgLoopLag: &lag, InUse: 12, Idle: 13, Parked: 14,
		},
	}
	f.System.CPU.User, f.System.Memory.RSS, f.System.Uptime = 1234, 5678, 61
	for range 2 {
		f.ID = uuid.New()
		_, err := b.store.FlushMetrics(t.Context(), &f)
		require.NoError(t, err)
	}
	const row = `push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests, ack_success, ack_failed, transactions, dlq_count, db_errors`
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.worker_metrics WHERE ROW(`+row+`) = ROW(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
		AND ROW(service, hostname, worker_id, port, pid, interval_ms) = ROW('broker', 'one', 0, 6632, 17, 61000)
		AND ROW(avg_lag_ms, max_lag_ms, avg_event_loop_lag_ms, db_connections, free_slots, parked) = ROW(2.5, 7, 1.5, 12, 13, 14)
		AND max_event_loop_lag_ms IS NULL`))
	b.exec(`DELETE FROM queen.worker_metrics`)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.worker_metrics_summary WHERE ROW(`+row+`) = ROW(2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22)`))
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.system_metrics WHERE hostname = 'one' AND metrics @> '{
		"cpu": {"user_us": 1234, "system_us": 0}, "memory": {"rss_bytes": 5678}, "uptime_seconds": 61,
		"database": {"pool_size": 0, "pool_idle": 0, "pool_active": 0}}'`))
}

// Two replicas name the same queues in opposite order, while others go.
func TestFlushesAndDeletionsDoNotLockEachOtherOut(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	const queues, rounds = 12, 15
	var rows []store.QueueMetrics
	for i := range queues {
		q := fmt.Sprint("q", i)
		b.queued(fresh(q, "p", 1))
		row := named(q, store.Counted{PushMessages: 1})
		row.Parked = 1
		rows = append(rows, row)
	}
	reversed := slices.Clone(rows)
	slices.Reverse(reversed)
	var g errgroup.Group
	for host, order := range map[string][]store.QueueMetrics{"one": rows, "two": reversed, "three": rows} {
		g.Go(func() error {
			for range rounds {
				f := &store.MetricsFlush{ID: uuid.New(), Replica: store.Replica{Host: host}, Interval: time.Minute, Queues: order}
				f.Worker.PushRequests = 1
				if _, err := b.store.FlushMetrics(t.Context(), f); err != nil {
					return err
				}
				if _, err := b.store.FoldPartitionEvents(t.Context(), 3); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		for i := range rounds {
			q := fmt.Sprint("q", i%queues)
			if _, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), q); err != nil {
				return err
			}
			if _, err := b.store.PushMulti(t.Context(), []store.PushSegment{fresh(q, "p", 1)}); err != nil {
				return err
			}
		}
		return nil
	})
	g.Go(func() error {
		for range rounds {
			if _, err := b.m.PurgeMetrics(t.Context(), time.Now().Add(time.Hour), 5); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, g.Wait())
	require.Equal(t, int64(3*rounds), b.count(`SELECT push_requests FROM queen.worker_metrics_summary`))
}

// measured are the tables of the purge and the columns of their times.
var measured = map[string]string{
	"worker_metrics": "captured_at", "system_metrics": "captured_at", "queue_lag_metrics": "bucket_time",
	"queue_parked_replica": "bucket_time", "retention_history": "executed_at",
}

func TestThePurgeFindsOldRowsByAnIndex(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for table, column := range measured {
		require.Positive(t, b.count(`SELECT count(*) FROM pg_index AS i
			JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
			WHERE i.indrelid = ('queen.' || $1)::regclass AND a.attname = $2`, table, column), table)
	}
}

// Each of the two statements commits alone, whichever fails.
func TestHalfOfThePurgeFailsAlone(t *testing.T) {
	t.Parallel()
	for broken, kept := range map[string]string{"retention_history": "system_metrics", "system_metrics": "retention_history"} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			b.exec(`INSERT INTO queen.retention_history (retention_type, executed_at) VALUES ('retention', now() - interval '100 days')`)
			b.exec(`INSERT INTO queen.system_metrics (service, hostname, captured_at, metrics) VALUES ('s', 'h', now() - interval '100 days', '{}')`)
			b.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
			b.exec(`CREATE TRIGGER refuse BEFORE DELETE ON queen.` + broken + ` FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
			n, err := b.m.PurgeMetrics(t.Context(), *ago(90 * day), 10)
			require.ErrorContains(t, err, "refused")
			require.EqualValues(t, 1, n)
			require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.`+broken))
			require.Zero(t, b.count(`SELECT count(*) FROM queen.`+kept))
		})
	}
}

func TestThePurgeTakesWhatIsOlderInBoundedSteps(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.exec(`INSERT INTO queen.queues (name) VALUES ('q')`)
	cutoff := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	const old = 5
	for age := -1; age < old; age++ { // -1: as young as the cutoff
		at := cutoff.Add(-time.Duration(age+1) * time.Hour)
		id := uuid.New()
		_, err := b.store.FlushMetrics(t.Context(), &store.MetricsFlush{ID: id})
		require.NoError(t, err)
		b.exec(`UPDATE queen.worker_metrics SET captured_at = $1 WHERE flush_id = $2`, at, id)
		b.exec(`UPDATE queen.system_metrics SET captured_at = $1 WHERE id = (SELECT max(id) FROM queen.system_metrics)`, at)
		b.exec(`INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id) SELECT $1, id FROM queen.queues`, at)
		b.exec(`INSERT INTO queen.queue_parked_replica (bucket_time, queue_id, hostname, parked_count) SELECT $1, id, 'x', 1 FROM queen.queues`, at)
		b.exec(`INSERT INTO queen.retention_history (retention_type, executed_at) VALUES ('retention', $1)`, at)
	}
	for _, step := range []struct{ deleted, left int64 }{{2, 4}, {2, 2}, {1, 1}, {0, 1}} {
		n, err := b.m.PurgeMetrics(t.Context(), cutoff, 2)
		require.NoError(t, err)
		require.Equal(t, step.deleted*int64(len(measured)), n)
		for table, column := range measured {
			require.Equal(t, step.left, b.count(`SELECT count(*) FROM queen.`+table), table)
			require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.`+table+` WHERE `+column+` = $1`, cutoff), table)
		}
	}
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.worker_metrics_summary`), "the totals stay")
}
