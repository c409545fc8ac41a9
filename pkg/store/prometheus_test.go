package store_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// ratesOf are the rates by queue, with their ages taken out.
func (b *metricsBench) ratesOf(maxQueues int) (rates map[string]store.QueueRate, ages map[string]float64) {
	b.t.Helper()
	m, err := b.store.PrometheusMetrics(b.t.Context(), maxQueues)
	require.NoError(b.t, err)
	rates, ages = map[string]store.QueueRate{}, map[string]float64{}
	for _, r := range m.Rates {
		require.NotContains(b.t, rates, r.Queue)
		ages[r.Queue], r.AgeSeconds = r.AgeSeconds, 0
		rates[r.Queue] = r
	}
	return rates, ages
}

func TestRatesAreThoseOfTheLastMinute(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	for _, q := range []string{"busy", "slow", "silent"} {
		b.configure(q, `{}`, false)
	}
	b.flush("one", named("silent", store.Counted{PushRequests: 1}))
	b.exec(`UPDATE queen.queue_lag_metrics SET bucket_time = bucket_time - interval '6 minutes'`)
	b.flush("one", named("busy", store.Counted{PushRequests: 100}), named("slow", store.Counted{PopRequests: 3, PopEmpty: 3}))
	b.exec(`UPDATE queen.queue_lag_metrics SET bucket_time = bucket_time - interval '3 minutes' WHERE bucket_time > now() - interval '5 minutes'`)
	b.flush("one", named("busy", store.Counted{
		PushRequests: 1, PushMessages: 2, PopRequests: 3, PopMessages: 2, PopEmpty: 5, LagMicros: 6000, MaxLagMicros: 4000,
		AckRequests: 1, AckSuccess: 6, AckFailed: 7, Transactions: 8,
	}))
	// Partitions of slow are removed meanwhile, which is no traffic.
	b.exec(`INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, partitions_deleted) SELECT date_trunc('minute', now()), $1, 9`, b.queueID("slow"))

	rates, ages := b.ratesOf(10)
	require.Equal(t, map[string]store.QueueRate{
		"busy": {
			Queue: "busy", PushRequests: 1, PushMessages: 2, PopMessages: 2, PopEmpty: 5,
			AckSuccess: 6, AckFailed: 7, Transactions: 8, AvgLagMillis: 3, MaxLagMillis: 4,
		},
		"slow": {Queue: "slow", PopEmpty: 3},
	}, rates)
	require.InDelta(t, 45, ages["busy"], 76)
	require.InDelta(t, 180+45, ages["slow"], 76)

}

func TestTotalsAreThoseOfAllReplicas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := store.WorkerMetrics{Counted: store.Counted{
		PushRequests: 1, PushMessages: 2, PopRequests: 3, PopMessages: 4, PopEmpty: 5, AckRequests: 6, AckSuccess: 7, AckFailed: 8, Transactions: 9,
	}, DeadLetters: 10, DatabaseErrors: 11}
	for _, host := range []string{"one", "two"} {
		_, err := b.store.FlushMetrics(t.Context(), &store.MetricsFlush{ID: uuid.New(), Replica: store.Replica{Service: "broker", Host: host}, Worker: w})
		require.NoError(t, err)
	}
	m, err := b.store.PrometheusMetrics(t.Context(), 10)
	require.NoError(t, err)
	w.Add(&w.Counted)
	w.DeadLetters, w.DatabaseErrors = 20, 22
	require.Equal(t, w, m.Cluster)
}

func TestAnInstallationThatIsNewHasNoMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m, err := b.store.PrometheusMetrics(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, store.PrometheusMetrics{Rates: []store.QueueRate{}, DeadLetters: []store.QueueDeadLetters{}}, m)
	backlogs, err := b.store.QueueBacklogs(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, backlogs)
	lags, err := b.store.GroupLags(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, lags)
}

// The queues of a name are one, and the first that were created have their own figures
// whatever the others do. A queue that is called other is among the others.
func TestTheFirstQueuesHaveFiguresOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := &metricsBench{bench: setup(t)}
	tenant := uuid.New()
	for i, q := range []string{"z", "b", "other", "a", "y"} {
		b.configure(q, `{}`, false)
		b.exec(`UPDATE queen.queues SET created_at = now() + $2 * interval '1 second' WHERE name = $1`, q, i)
	}
	b.exec(`INSERT INTO queen.queues (tenant_id, name) VALUES ($1, 'z')`, tenant)
	name, n := "z", store.Counted{PushRequests: 10, PopMessages: 3, LagMicros: 3_000_000}
	b.flush("one", store.QueueMetrics{Tenant: &tenant, Queue: &name, Counted: n},
		named("z", store.Counted{PushRequests: 1, PopMessages: 1, LagMicros: 5_000_000, MaxLagMicros: 5_000_000}),
		named("other", store.Counted{PushRequests: 100}), named("a", store.Counted{PushRequests: 1000}), named("y", store.Counted{PushRequests: 10_000}))
	for _, q := range []string{"z", "a", "y"} {
		lane := b.queued(segment(q, "p", 1)).PartitionID
		b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") SELECT $1, 'g', n FROM generate_series(1, 2) AS n`, lane)
	}

	rates, _ := b.ratesOf(3)
	require.Equal(t, store.QueueRate{Queue: "z", PushRequests: 11, PopMessages: 4, AvgLagMillis: 2000, MaxLagMillis: 5000}, rates["z"])
	require.Equal(t, store.QueueRate{Queue: "other", PushRequests: 11_100}, rates["other"])
	require.Len(t, rates, 2, "b did nothing")

	b.refresh()
	for _, how := range []string{"counted", "refreshed"} {
		m, err := b.store.PrometheusMetrics(t.Context(), 3)
		require.NoError(t, err)
		require.ElementsMatch(t, []store.QueueDeadLetters{{"z", 2}, {"b", 0}, {"other", 4}}, m.DeadLetters, how)
		m, err = b.store.PrometheusMetrics(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, []store.QueueDeadLetters{{"other", 6}}, m.DeadLetters, how)
		// Many rows that belong to no lane make the index large.
		b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") SELECT gen_random_uuid(), 'g', n FROM generate_series(1, 40000) AS n`)
	}
	backlogs, err := b.store.QueueBacklogs(t.Context(), 3)
	require.NoError(t, err)
	require.ElementsMatch(t, []store.QueueBacklog{
		{Queue: "z", Partitions: 1, Pending: 1}, {Queue: "b"}, {Queue: "other", Partitions: 2, Pending: 2},
	}, withoutAges(backlogs))
}

func withoutAges(backlogs []store.QueueBacklog) []store.QueueBacklog {
	for i := range backlogs {
		backlogs[i].OldestPendingSeconds = 0
	}
	return backlogs
}

func TestBacklogsTellTheAgeOfTheOldestMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.layFigures("q")
	b.exec(`UPDATE queen.log_segments SET created_at = created_at - interval '90 seconds'`)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - interval '90 seconds'`)
	b.refresh()
	b.exec(`UPDATE queen.stats SET retained_bytes = 17 WHERE stat_type = 'queue'`)
	backlogs, err := b.store.QueueBacklogs(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, backlogs, 1)
	require.InDelta(t, 110, backlogs[0].OldestPendingSeconds, 20)
	require.Equal(t, []store.QueueBacklog{{Queue: "q", Partitions: 2, Pending: 6, Processing: 2, RetainedBytes: 17}}, withoutAges(backlogs))
}

func TestTheLagOfGroups(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.layFigures("q") // busy: 2 to 9 retained; idle: 1, consumed without a group
	for id := range uint64(3) {
		b.queued(segment("q", fmt.Sprint("new-", id), 10*id, 10*id+1))
	}
	b.queued(segment("hidden", "p", 1))
	b.exec(`UPDATE queen.queues SET created_at = now() + interval '1 hour' WHERE name = 'hidden'`)
	subscribe := func(group, mode string) {
		b.exec(`INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
			SELECT $1, id, $2, now() FROM queen.queues`, group, mode)
	}
	subscribe("slow", "all")  // and has no cursor at new partitions
	subscribe("late", "new")  // and has never popped
	subscribe("whole", "all") // the same
	want := []store.GroupLag{
		{"q", "slow", 6 + 1 + 6},
		{"q", "fast", 3}, // it pops that partition only
		{"q", "__QUEUE_MODE__", 8},
		{"q", "whole", 8 + 1 + 6},
		{"q", "late", 0},
		{"other", "slow", 1}, {"other", "whole", 1}, {"other", "late", 0},
	}
	for _, lanes := range []int{1, 2, 100} {
		got, err := b.store.GroupLagsPaged(t.Context(), 1, lanes)
		require.NoError(t, err)
		require.ElementsMatch(t, want, got, "pages of %d", lanes)
	}
	got, err := b.store.GroupLags(t.Context(), 1)
	require.NoError(t, err)
	require.ElementsMatch(t, want, got)

	b.exec(`DELETE FROM queen.consumer_groups_metadata`)
	b.exec(`DELETE FROM queen.log_consumers`)
	got, err = b.store.GroupLagsPaged(t.Context(), 1, 1)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestTheHealthOfTheDatabase(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	quiet, err := b.store.DatabaseHealth(t.Context())
	require.NoError(t, err)
	require.Zero(t, quiet.IdleInTransaction)
	require.Zero(t, quiet.LongestTransaction)
	require.Positive(t, quiet.MaxConnections)
	require.Positive(t, quiet.Connections)
	require.Less(t, quiet.Connections, quiet.MaxConnections)
	require.Greater(t, quiet.DatabaseBytes, int64(1<<20))
	require.Positive(t, quiet.WALWritten)
	require.Positive(t, quiet.FreezeAge)
	require.NotNil(t, quiet.WALBytes, "a superuser may look")
	require.Contains(t, quiet.Horizons, "slot")
	require.Contains(t, quiet.Horizons, "prepared")
	names := map[string]bool{}
	for _, table := range quiet.Tables {
		names[table.Table] = true
	}
	for _, hot := range []string{"log_partitions", "log_consumers", "log_segments", "log_txns", "kv", "log_timers"} {
		require.Contains(t, names, hot)
	}

	// One holds a snapshot, and does nothing with it.
	conn, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	var one int
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT 1 FROM pg_sleep(0.01)`).Scan(&one))
	held, err := b.store.DatabaseHealth(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), held.IdleInTransaction)
	require.Zero(t, held.LongTransactions)
	require.GreaterOrEqual(t, held.LongestTransaction, 0.01)
	require.GreaterOrEqual(t, held.OldestSnapshot, held.LongestTransaction)
	require.Less(t, held.LongestIdle, held.LongestTransaction)
	require.Greater(t, held.Connections, int64(1))
}
