package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// keepBench is a bench with the session of a leader.
type keepBench struct {
	*bench
	m *store.MaintenanceSession
}

func setupKeep(t *testing.T) *keepBench {
	t.Helper()
	b := &keepBench{bench: setup(t)}
	b.m = b.session()
	got, err := b.m.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, got)
	return b
}

// session is a maintenance session that ends with the test.
func (b *keepBench) session() *store.MaintenanceSession {
	b.t.Helper()
	m, err := b.store.Maintenance(b.t.Context())
	require.NoError(b.t, err)
	b.t.Cleanup(func() { m.Close(context.Background()) })
	return m
}

// fill pushes segments of the given sizes into a lane and makes them ages[i] old,
// with their sidecar rows and the lane's watermarks.
func (b *keepBench) fill(queue, lane string, frames int, ages ...time.Duration) uuid.UUID {
	b.t.Helper()
	var pid uuid.UUID
	for _, age := range ages {
		v := b.queued(fresh(queue, lane, frames))
		pid = v.PartitionID
		for _, table := range []string{"log_segments", "log_txns"} {
			b.exec(`UPDATE queen.`+table+` SET created_at = now() - $3::float8 * interval '1 s'
				WHERE partition_id = $1 AND base_offset = $2`, pid, v.BaseOffset, age.Seconds())
		}
	}
	b.mark(pid)
	return pid
}

// mark sets the watermarks of a lane to what its rows say.
func (b *keepBench) mark(pid uuid.UUID) {
	b.t.Helper()
	b.exec(`UPDATE queen.log_partitions AS p SET
		oldest_live_at = (SELECT min(s.created_at) FROM queen.log_segments AS s WHERE s.partition_id = p.id),
		oldest_txn_at = (SELECT min(t.created_at) FROM queen.log_txns AS t WHERE t.partition_id = p.id) WHERE p.id = $1`, pid)
}

// cursor gives a group a position on a lane.
func (b *keepBench) cursor(pid uuid.UUID, group string, committed int64) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = excluded.committed`, pid, group, committed)
}

// ago is a cutoff.
func ago(d time.Duration) *time.Time {
	at := time.Now().Add(-d)
	return &at
}

// step makes one retention step that must not fail.
func (b *keepBench) step(pid uuid.UUID, all, completed *time.Time, rows int) store.Step {
	b.t.Helper()
	s, err := b.m.RetentionStep(b.t.Context(), pid, all, completed, rows)
	require.NoError(b.t, err)
	return s
}

// bases are the base offsets of the segments of a lane.
func (b *keepBench) bases(pid uuid.UUID) []int64 {
	b.t.Helper()
	var bases []int64
	b.one([]any{&bases}, `SELECT coalesce(array_agg(base_offset ORDER BY base_offset), '{}') FROM queen.log_segments WHERE partition_id = $1`, pid)
	return bases
}

// lane is what a lane's row says.
type lane struct {
	Last, Start, Txns int64
	Live, Txn         *time.Time
}

func (b *keepBench) lane(pid uuid.UUID) (l lane) {
	b.t.Helper()
	b.one([]any{&l.Last, &l.Start, &l.Txns, &l.Live, &l.Txn},
		`SELECT last_offset, log_start, txns_start, oldest_live_at, oldest_txn_at FROM queen.log_partitions WHERE id = $1`, pid)
	return l
}

// events is the history of a lane: "type frames", in order.
func (b *keepBench) events(pid uuid.UUID) []string {
	b.t.Helper()
	var events []string
	b.one([]any{&events}, `SELECT coalesce(array_agg(retention_type || ' ' || messages_deleted ORDER BY id), '{}')
		FROM queen.retention_history WHERE partition_id = $1`, pid)
	return events
}

// inTx runs fn in a transaction that is then committed.
func (b *keepBench) inTx(fn func(ctx context.Context, tx pgx.Tx)) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			fn(ctx, tx)
			return nil
		})
	}))
}

// undone runs fn in a transaction that is then rolled back.
func (b *keepBench) undone(fn func(ctx context.Context, tx pgx.Tx)) {
	b.t.Helper()
	b.inTx(func(ctx context.Context, tx pgx.Tx) {
		savepoint, err := tx.Begin(ctx)
		require.NoError(b.t, err)
		fn(ctx, savepoint)
		require.NoError(b.t, savepoint.Rollback(ctx))
	})
}
