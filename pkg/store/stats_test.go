package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// figures is a row of queen.stats as a test compares it.
type figures struct {
	Children, Total, Pending, Processing, Completed, DeadLetter int64
}

func (b *bench) figures(kind, key string) (f figures) {
	b.t.Helper()
	b.one([]any{&f.Children, &f.Total, &f.Pending, &f.Processing, &f.Completed, &f.DeadLetter},
		`SELECT child_count, total_messages, pending_messages, processing_messages, completed_messages, dead_letter_messages
		FROM queen.stats WHERE stat_type = $1 AND stat_key = $2`, kind, key)
	return f
}

// lag is how far a row of queen.stats is behind.
type lag struct {
	AvgSeconds, MaxSeconds float64
	AvgOffsets, MaxOffsets int64
	Oldest, Newest         *time.Time
}

func (b *bench) lag(kind, key string) (l lag) {
	b.t.Helper()
	b.one([]any{&l.AvgSeconds, &l.MaxSeconds, &l.AvgOffsets, &l.MaxOffsets, &l.Oldest, &l.Newest},
		`SELECT avg_lag_seconds, max_lag_seconds, avg_offset_lag, max_offset_lag, oldest_pending_at, newest_message_at
		FROM queen.stats WHERE stat_type = $1 AND stat_key = $2`, kind, key)
	return l
}

func (b *bench) queueID(queue string) string {
	b.t.Helper()
	return b.queueIDOf(store.DefaultTenant(), queue)
}

func (b *bench) queueIDOf(tenant uuid.UUID, queue string) (id string) {
	b.t.Helper()
	b.one([]any{&id}, `SELECT id::text FROM queen.queues WHERE name = $1 AND tenant_id = $2`, queue, tenant)
	return id
}

// refresh refreshes the statistics, in pages so small that everything is on several.
func (b *bench) refresh() store.StatsSummary {
	b.t.Helper()
	turn, sum, err := b.store.RefreshStatsPaged(b.t.Context(), 0, 2, 2)
	require.NoError(b.t, err)
	require.Equal(b.t, store.StatsTurn{State: store.StatsDone}, turn)
	return sum
}

// layFigures makes a queue of two partitions. busy has ten messages of which two are
// deleted, one dead letter, and three groups: one at 3 with a lease of two, one at 6
// whose lease has ended, and a forgotten pop without a group. idle is consumed.
func (b *bench) layFigures(queue string) (busy uuid.UUID) {
	b.t.Helper()
	for id := range uint64(5) {
		busy = b.queued(segment(queue, "busy", 2*id, 2*id+1)).PartitionID
	}
	b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 0`, busy)
	b.exec(`UPDATE queen.log_partitions SET log_start = 2 WHERE id = $1`, busy)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, lease_expires_at) VALUES
		($1, 'slow', 3, 5, now() + interval '1 hour'), ($1, 'fast', 6, 8, now() - interval '1 hour'), ($1, '__QUEUE_MODE__', -1, NULL, NULL)`, busy)
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") VALUES ($1, 'slow', 2)`, busy)
	idle := b.queued(segment(queue, "idle", 1)).PartitionID
	b.cursorAt(idle, store.QueueModeGroup, 0)
	return busy
}

func TestRefreshCountsByWatermarks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.layFigures("q")
	b.configure("empty", `{}`, false)

	sum := b.refresh()
	require.WithinDuration(t, time.Now(), sum.RefreshedAt, time.Hour)
	sum.RefreshedAt = time.Time{}
	require.Equal(t, store.StatsSummary{Queues: 2, Partitions: 2, Namespaces: 2, Tasks: 1}, sum)
	// busy: 8 retained, the slow group has 4 to 9 before it; idle: 1 retained, consumed.
	want := figures{Children: 2, Total: 9, Pending: 6, Processing: 2, Completed: 2, DeadLetter: 1}
	require.Equal(t, want, b.figures("queue", b.queueID("q")))
	require.Equal(t, figures{}, b.figures("queue", b.queueID("empty")))
	require.Equal(t, want, b.figures("system", "global"))
}

func TestRefreshNowIsTheSameInOneCall(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doc, err := b.store.RefreshStatsNow(t.Context())
	require.NoError(t, err)
	require.Equal(t, 0.0, object(t, doc)["namespaces"], "nothing is no error")
	require.Equal(t, figures{}, b.figures("system", "global"))

	b.layFigures("q")
	doc, err = b.store.RefreshStatsNow(t.Context())
	require.NoError(t, err)
	out := object(t, doc)
	requireMillis(t, out["refreshedAt"])
	delete(out, "refreshedAt")
	require.Equal(t, map[string]any{
		"engine": "segments", "queuesUpdated": 1.0, "segPartitions": 2.0, "namespaces": 1.0, "tasks": 1.0, "system": 1.0,
	}, out)
	require.Equal(t, figures{Children: 2, Total: 9, Pending: 6, Processing: 2, Completed: 2, DeadLetter: 1}, b.figures("queue", b.queueID("q")))
}

// Both limits hold for the queue as a whole: partition a has a lease of six over
// two pending messages, c more dead letters than messages that are through.
func TestProcessingIsCappedAndCompletedFlooredPerQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.queued(segment("q", "a", 0, 1, 2, 3)).PartitionID
	b.leased(a, group, "w", 1, 7)
	b.queued(segment("q", "b", 0, 1, 2))
	c := b.queued(segment("q", "c", 0)).PartitionID
	b.cursorAt(c, group, 0)
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") SELECT $1, 'g', n FROM generate_series(1, 2) AS n`, c)
	b.refresh()
	// Completed: 2 of a and 1 of c less 2 dead letters; by partition it would be 2.
	require.Equal(t, figures{Children: 3, Total: 8, Pending: 5, Processing: 5, Completed: 1, DeadLetter: 2}, b.figures("queue", b.queueID("q")))

	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") SELECT $1, 'g', n FROM generate_series(3, 6) AS n`, c)
	b.expireLease(a, group)
	b.refresh()
	require.Equal(t, figures{Children: 3, Total: 8, Pending: 5, DeadLetter: 6}, b.figures("queue", b.queueID("q")))
}

func TestRefreshMeasuresTheLag(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.laneOf("q") // segments at 0, 2, 3 and 6
	for base, age := range map[int64]string{0: "50 s", 2: "40.9 s", 3: "30 s", 6: "20 s"} {
		b.exec(`UPDATE queen.log_segments SET created_at = now() - $3::text::interval WHERE partition_id = $1 AND base_offset = $2`, pid, base, age)
	}
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = (SELECT min(created_at) FROM queen.log_segments) WHERE id = $1`, pid)
	stamp := func(base int64) (at *time.Time) {
		b.one([]any{&at}, `SELECT created_at FROM queen.log_segments WHERE base_offset = $1`, base)
		return at
	}
	check := func(pending int64, oldest *time.Time, why string) {
		t.Helper()
		b.refresh()
		l := b.lag("queue", b.queueID("q"))
		require.Nil(t, l.Newest)
		require.Equal(t, []int64{pending, pending}, []int64{l.AvgOffsets, l.MaxOffsets}, why)
		require.Equal(t, oldest, l.Oldest, why)
		var seconds float64
		b.one([]any{&seconds}, `SELECT coalesce(floor(extract(epoch from last_computed_at - $1::timestamptz)), 0)::float8
			FROM queen.stats WHERE stat_type = 'queue'`, oldest)
		require.Equal(t, []float64{seconds, seconds}, []float64{l.AvgSeconds, l.MaxSeconds}, "whole seconds: %s", why)
	}
	check(8, stamp(0), "no cursor")
	b.cursorAt(pid, group, -1)
	check(8, stamp(0), "nothing consumed")
	b.exec(`UPDATE queen.log_consumers SET committed = 1`)
	check(6, stamp(2), "the next segment")
	b.exec(`UPDATE queen.log_consumers SET committed = 3`)
	check(4, stamp(3), "in the middle of a segment")
	b.exec(`DELETE FROM queen.log_segments WHERE base_offset = 3`)
	check(4, stamp(6), "the next one after a gap")
	b.exec(`UPDATE queen.log_consumers SET committed = 7`)
	check(0, nil, "all consumed")
}

// A database that was just upgraded has no watermarks yet.
func TestRefreshFindsTheOldestWithoutAWatermark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.laneOf("q")
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = NULL`)
	b.refresh()
	var want time.Time
	b.one([]any{&want}, `SELECT created_at FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 0`, pid)
	require.Equal(t, &want, b.lag("queue", b.queueID("q")).Oldest)
}

func TestRatesCountFromTheLastRefresh(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 0, 1, 2, 3)).PartitionID
	b.cursorAt(pid, group, 0)
	rates := func() (in, out float64) {
		b.refresh()
		doc, err := b.store.StatsOverview(t.Context(), store.DefaultTenant())
		require.NoError(t, err)
		per := object(t, doc)["throughput"].(map[string]any)
		return per["ingestedPerSecond"].(float64), per["processedPerSecond"].(float64)
	}
	in, out := rates()
	require.Equal(t, []float64{0, 0}, []float64{in, out}, "there is none before")

	aged := func(interval string) {
		b.exec(`UPDATE queen.stats SET last_computed_at = last_computed_at - $1::text::interval`, interval)
	}
	b.queued(segment("q", "p", 4, 5, 6, 7, 8, 9))
	b.exec(`UPDATE queen.log_consumers SET committed = 3`)
	aged("1000 s")
	in, out = rates()
	require.InDelta(t, 6.0/1000, in, 1e-4)
	require.InDelta(t, 3.0/1000, out, 1e-4)
	var total, completed int64
	var elapsed float64
	b.one([]any{&total, &completed, &elapsed}, `SELECT prev_total, prev_completed, extract(epoch FROM last_computed_at - prev_at)::float8
		FROM queen.stats WHERE stat_type = 'namespace'`)
	require.Equal(t, []int64{4, 1}, []int64{total, completed}, "the rollups have previous values as well")
	require.InDelta(t, 1000, elapsed, 60)

	b.exec(`UPDATE queen.log_partitions SET log_start = 4`)
	aged("10 s")
	in, out = rates()
	require.Equal(t, []float64{0, 0}, []float64{in, out}, "a sweep is no negative rate")
}

func TestRateNeedsThreeSeconds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cases := []struct {
		now, before int64
		elapsed     *string
		want        float64
	}{
		{40, 10, ptr("3 s"), 10},
		{40, 10, ptr("2.999 s"), 0},
		{40, 10, ptr("-10 s"), 0},
		{10, 40, ptr("10 s"), 0},
		{40, 10, nil, 0},
	}
	for _, c := range cases {
		var got float64
		b.one([]any{&got}, `SELECT queen.stats_rate_v1($1, $2, now(), now() - $3::text::interval)`, c.now, c.before, c.elapsed)
		require.Equal(t, c.want, got, "%v", c)
	}
}
