package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/schema"
	"github.com/queenmq/queen/pkg/store"
)

// fold moves all events, a few at a time.
func (b *metricsBench) fold() {
	b.t.Helper()
	for {
		n, err := b.store.FoldPartitionEvents(b.t.Context(), 2)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, n, 2)
		if n == 0 {
			return
		}
	}
}

func TestCreatedLanesAreCounted(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.push(fresh("a", "p", 1), fresh("a", "x", 1), fresh("b", "x", 1), fresh("a", "y", 1)) // a/p is there already
	b.push(fresh("a", "x", 1))
	b.queued(fresh("b", "y", 1))
	require.Equal(t, int64(3), b.count(`SELECT count(*) FROM queen.partition_events`), "one for each queue of a statement")
	b.fold()
	require.Equal(t, int64(2), b.minute("a").Created)
	require.Equal(t, int64(2), b.minute("b").Created)
	require.Zero(t, b.minute("a").Gone)
	b.queued(fresh("a", "z", 1))
	b.fold()
	require.Equal(t, int64(3), b.minute("a").Created, "later ones are added")
}

func TestEventsKeepTheirMinute(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.queued(fresh("a", "x", 1))
	b.exec(`UPDATE queen.partition_events SET bucket_time = '2026-05-01T12:34:00Z'`)
	b.fold()
	require.Equal(t, int64(1), b.count(`SELECT partitions_created FROM queen.queue_lag_metrics WHERE bucket_time = '2026-05-01T12:34:00Z'`))
}

func TestDeletedLanesAreCounted(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.push(fresh("a", "x", 1), fresh("a", "y", 1))
	b.fold()
	b.exec(`DELETE FROM queen.log_partitions WHERE name IN ('x', 'y')`)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.partition_events`))
	b.fold()
	require.Equal(t, minute{Created: 2, Gone: 2, AvgLag: -1, MaxLag: -1, Partitions: -1}, b.minute("a"))
}

func TestLanesThatTheCleanupTakesAreCounted(t *testing.T) {
	t.Parallel()
	k := setupKeep(t)
	b := &metricsBench{bench: k.bench}
	b.queued(fresh("a", "busy", 1))
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name, created_at, last_write_at)
		SELECT q.id, n, now() - interval '9 days', now() - interval '9 days' FROM queen.queues AS q, unnest(ARRAY['x', 'y', 'z']) AS n`)
	got, err := k.m.CleanupStep(t.Context(), time.Now().Add(-8*24*time.Hour), store.LaneKey{}, 10)
	require.NoError(t, err)
	require.Equal(t, int64(3), got.Deleted)
	b.fold()
	require.Equal(t, minute{Created: 4, Gone: 3, AvgLag: -1, MaxLag: -1, Partitions: -1}, b.minute("a"))
}

func TestTheLanesOfADeletedQueueAreCountedAndForgotten(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.push(fresh("a", "x", 1), fresh("a", "y", 1))
	b.exec(`DELETE FROM queen.partition_events`)
	_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "a")
	require.NoError(t, err)
	require.Equal(t, int64(3), b.count(`SELECT deleted FROM queen.partition_events`), "by the cascade, in one statement")
	b.fold()
	require.Zero(t, b.count(`SELECT count(*) FROM queen.queue_lag_metrics`))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.partition_events`))
}

func TestALaneOfARolledBackPushIsNotCounted(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(t.Context()) }()
	tx, err := session.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `INSERT INTO queen.log_partitions (queue_id, name) SELECT id, 'never' FROM queen.queues`)
	require.NoError(t, err)

	// Nobody waits for the open transaction: neither a creation nor the fold.
	b.queued(fresh("a", "x", 1))
	b.fold()
	require.Equal(t, int64(1), b.minute("a").Created)
	require.NoError(t, tx.Rollback(t.Context()))
	b.fold()
	require.Equal(t, int64(1), b.minute("a").Created)
}

func TestReapplyingKeepsTheTriggers(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	const triggers = `SELECT oid::bigint FROM pg_trigger WHERE tgname = $1 AND tgrelid IN ('queen.log_partitions'::regclass, 'queen.worker_metrics'::regclass)`
	names := []string{"trg_partitions_created_counter", "trg_partitions_deleted_counter", "trg_worker_metrics_summary"}
	before := make([]int64, len(names))
	for i, name := range names {
		before[i] = b.count(triggers, name)
	}
	_, err := schema.Apply(t.Context(), b.db, schema.Options{Force: true})
	require.NoError(t, err)
	for i, name := range names {
		require.Equal(t, before[i], b.count(triggers, name), name)
	}
	b.queued(fresh("a", "x", 1))
	b.fold()
	require.Equal(t, int64(1), b.minute("a").Created)
}

// history writes what a retention step leaves.
func (b *metricsBench) history(lane any, kind string, at time.Time, messages int) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.retention_history (partition_id, retention_type, executed_at, messages_deleted) VALUES ($1, $2, $3, $4)`,
		lane, kind, at, messages)
}

func (b *metricsBench) series(f store.TimeseriesFilter) string {
	b.t.Helper()
	f.Tenant = store.DefaultTenant()
	doc, err := b.store.RetentionTimeseries(b.t.Context(), f)
	require.NoError(b.t, err)
	return string(doc)
}

func point(bucket string, figures ...int) string {
	if bucket != "" {
		bucket = fmt.Sprintf(`"bucket": %q, `, bucket)
	}
	return fmt.Sprintf(`{%s"retentionMsgs": %d, "completedRetentionMsgs": %d, "evictionMsgs": %d, "totalMsgs": %d, "eventCount": %d}`,
		bucket, figures[0], figures[1], figures[2], figures[3], figures[4])
}

func TestTheRetentionSeries(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	from := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	b.exec(`INSERT INTO queen.queues (name, tenant_id) VALUES ('foreign', '00000000-0000-0000-0000-000000000002')`)
	b.exec(`INSERT INTO queen.log_partitions (queue_id, name) SELECT id, 'p' FROM queen.queues WHERE name = 'foreign'`)
	var foreign string
	b.one([]any{&foreign}, `SELECT p.id FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = 'foreign'`)
	const gone = "11111111-1111-1111-1111-111111111111"
	minute := func(n float64) time.Time { return from.Add(time.Duration(n * float64(time.Minute))) }

	b.history(b.a, "retention", from, 100) // the window includes both its ends
	b.history(b.a, "completed_retention", minute(0.99), 20)
	b.history(b.b, "max_wait_time_eviction", minute(4), 3)
	b.history(gone, "retention", minute(4.5), 5)
	b.history(gone, "__partition_deleted__", minute(4.5), 0)
	b.history(foreign, "retention", minute(4), 1000)
	b.history(b.a, "retention", minute(6), 7)
	b.history(b.a, "retention", minute(-0.1), 10_000)
	b.history(b.a, "retention", minute(6.1), 10_000)

	f := store.TimeseriesFilter{From: from, To: minute(6)}
	const window = `"timeRange": {"from": "2026-05-01T12:00:00.000Z", "to": "2026-05-01T12:06:00.000Z"}, "bucketMinutes": 1`
	require.JSONEq(t, `{`+window+`, "totals": `+point("", 112, 20, 3, 135, 5)+`, "series": [`+
		point("2026-05-01T12:00:00.000Z", 100, 20, 0, 120, 2)+`, `+
		point("2026-05-01T12:04:00.000Z", 5, 0, 3, 8, 2)+`, `+
		point("2026-05-01T12:06:00.000Z", 7, 0, 0, 7, 1)+`]}`, b.series(f))

	f.Queue = "b"
	require.JSONEq(t, `{`+window+`, "totals": `+point("", 0, 0, 3, 3, 1)+`, "series": [`+
		point("2026-05-01T12:04:00.000Z", 0, 0, 3, 3, 1)+`]}`, b.series(f), "of a queue only what is known to be its own")

	f.Queue = "unknown"
	require.JSONEq(t, `{`+window+`, "totals": `+point("", 0, 0, 0, 0, 0)+`, "series": []}`, b.series(f))
}

func TestTheBucketsOfASeriesFollowItsWindow(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	at := time.Date(2026, 5, 1, 13, 17, 0, 0, time.UTC)
	b.history(b.a, "retention", at, 1)
	for _, c := range []struct {
		window  time.Duration
		minutes int
		bucket  string
	}{
		{time.Hour, 1, "13:17"}, {time.Hour + time.Second, 5, "13:15"},
		{6 * time.Hour, 5, "13:15"}, {6*time.Hour + time.Second, 15, "13:15"},
		{24 * time.Hour, 15, "13:15"}, {24*time.Hour + time.Second, 60, "13:00"},
		{7 * 24 * time.Hour, 60, "13:00"}, {7*24*time.Hour + time.Second, 360, "12:00"},
	} {
		doc := object(t, []byte(b.series(store.TimeseriesFilter{From: at, To: at.Add(c.window)})))
		require.EqualValues(t, c.minutes, doc["bucketMinutes"], c.window)
		require.Contains(t, fmt.Sprint(doc["series"]), "bucket:2026-05-01T"+c.bucket+":00.000Z", c.window)
	}
}

func TestTheRetentionSeriesIsOfTheLastHour(t *testing.T) {
	t.Parallel()
	b := setupMetrics(t)
	b.history(b.a, "retention", time.Now().Add(-59*time.Minute), 1)
	b.history(b.a, "retention", time.Now().Add(-61*time.Minute), 10)
	totals, ok := object(t, []byte(b.series(store.TimeseriesFilter{})))["totals"].(map[string]any)
	require.True(t, ok)
	require.EqualValues(t, 1, totals["totalMsgs"])
}
