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

func (b *bench) queueID(queue string) (id string) {
	b.t.Helper()
	b.one([]any{&id}, `SELECT id::text FROM queen.queues WHERE name = $1 AND tenant_id = $2`, queue, store.DefaultTenant())
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

// laid is a queue of three partitions: ten messages of which two are deleted, with
// two named groups at 3 and 6 and a forgotten cursor without a group; one that is
// consumed; and an empty one with a lease that is longer than what is pending.
func (b *bench) laidStats(queue string) (busy uuid.UUID) {
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
	b.laidStats("q")
	b.configure("empty", `{}`, false)

	sum := b.refresh()
	require.WithinDuration(t, time.Now(), sum.RefreshedAt, time.Hour)
	sum.RefreshedAt = time.Time{}
	require.Equal(t, store.StatsSummary{Queues: 2, Partitions: 2, Namespaces: 2, Tasks: 1}, sum)
	// busy: 8 retained, the slow group has 4 to 9 before it; idle: 1 retained, consumed.
	require.Equal(t, figures{Children: 2, Total: 9, Pending: 6, Processing: 2, Completed: 2, DeadLetter: 1}, b.figures("queue", b.queueID("q")))
	require.Equal(t, figures{}, b.figures("queue", b.queueID("empty")))
	require.Equal(t, figures{Children: 2, Total: 9, Pending: 6, Processing: 2, Completed: 2, DeadLetter: 1}, b.figures("system", "global"))
}

func TestRefreshNowIsTheSameInOneCall(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.laidStats("q")
	doc, err := b.store.RefreshStatsNow(t.Context())
	require.NoError(t, err)
	out := object(t, doc)
	requireMillis(t, out["refreshedAt"])
	delete(out, "refreshedAt")
	require.Equal(t, map[string]any{
		"engine": "segments", "queuesUpdated": 1.0, "segPartitions": 2.0, "namespaces": 1.0, "tasks": 1.0, "system": 1.0,
	}, out)
	require.Equal(t, figures{Children: 2, Total: 9, Pending: 6, Processing: 2, Completed: 2, DeadLetter: 1}, b.figures("queue", b.queueID("q")))
}
