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

func (b *bench) laneState(queue, partition string, known uuid.UUID, window int) store.LaneState {
	b.t.Helper()
	l, ok, err := b.store.Lane(b.t.Context(), store.DefaultTenant(), queue, partition, 5, known, window)
	require.NoError(b.t, err)
	require.True(b.t, ok)
	return l
}

func TestLaneOfNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, ok, err := b.store.Lane(t.Context(), store.DefaultTenant(), "q", "p", 5, uuid.Nil, 0)
	require.NoError(t, err)
	require.False(t, ok, "an unknown queue")
	b.configure("q", `{"dedupWindowSeconds": 60}`, false)
	require.Equal(t, store.LaneState{Window: 60, Last: -1, Start: store.NoStart}, b.laneState("q", "p", uuid.Nil, 0), "an unknown partition")
	b.configure("off", `{"dedupWindowSeconds": 0}`, false)
	pid := b.queued(segment("off", "p", 1)).PartitionID
	require.Equal(t, store.LaneState{PartitionID: pid, Last: 0, Start: store.NoStart}, b.laneState("off", "p", uuid.Nil, 0), "no window, no start")
}

func TestLaneTellsWhereItsWindowBegins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"dedupWindowSeconds": 60}`, false)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	for id := range uint64(20) {
		b.queued(segment("q", "p", 100+3*id, 101+3*id, 102+3*id)) // 1 to 60
	}
	age := func(below int64, age time.Duration) {
		b.exec(`UPDATE queen.log_txns SET created_at = clock_timestamp() - make_interval(secs => $3) WHERE partition_id = $1 AND base_offset < $2`,
			pid, below, age.Seconds())
	}
	require.Equal(t, store.LaneState{Window: 60, PartitionID: pid, Last: 60, Start: 0}, b.laneState("q", "p", uuid.Nil, 0))
	age(22, 100*time.Second)
	require.EqualValues(t, 22, b.laneState("q", "p", uuid.Nil, 0).Start)
	age(5, 200*time.Second)
	require.EqualValues(t, 22, b.laneState("q", "p", uuid.Nil, 0).Start)
	b.exec(`DELETE FROM queen.log_txns WHERE partition_id = $1 AND base_offset < 10`, pid)
	require.EqualValues(t, 22, b.laneState("q", "p", uuid.Nil, 0).Start, "with rows purged in front of it")
	b.exec(`UPDATE queen.log_partitions SET txns_start = 31 WHERE id = $1`, pid)
	require.EqualValues(t, 31, b.laneState("q", "p", uuid.Nil, 0).Start, "not below the purge watermark")
	age(61, 100*time.Second)
	require.EqualValues(t, 61, b.laneState("q", "p", uuid.Nil, 0).Start, "an empty window begins behind the last offset")
	age(61, 63*time.Second)
	require.EqualValues(t, 31, b.laneState("q", "p", uuid.Nil, 0).Start, "the slack counts as window")

	require.Equal(t, store.NoStart, b.laneState("q", "p", pid, 60).Start, "a reader that knows the lane")
	require.EqualValues(t, 31, b.laneState("q", "p", pid, 59).Start, "for a shorter window only")
	require.EqualValues(t, 31, b.laneState("q", "p", uuid.New(), 60).Start, "under another id")
}

func TestSidecarPagesAreAscendingAndComplete(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var pid uuid.UUID
	var want []byte
	var last store.PushVerdict
	for n := range 12 {
		s := fresh("q", "p", 1+n%4)
		last = b.queued(s)
		pid, want = last.PartitionID, append(want, s.Hashes...)
	}
	b.queued(fresh("q", "other", 3))
	var got []byte
	var bases []int64
	after, pages := int64(-1), 0
	for {
		p, err := b.store.SidecarPage(t.Context(), pid, after, 7)
		require.NoError(t, err)
		if len(p.Bases) == 0 {
			require.Empty(t, p.Hashes)
			break
		}
		require.Less(t, p.Bases[len(p.Bases)-1]-p.Bases[0], int64(7))
		require.False(t, p.Newest.After(last.CreatedAt))
		p.Rows(func(base, end int64, hashes []byte) {
			require.Len(t, hashes, int(end-base+1)*16)
			got, bases, after = append(got, hashes...), append(bases, base), end
		})
		pages++
	}
	require.Equal(t, want, got)
	require.Len(t, bases, 12)
	require.GreaterOrEqual(t, pages, 3)

	rows, err := b.store.SidecarRows(t.Context(), pid, []int64{bases[7], 100, bases[2], bases[7]})
	require.NoError(t, err)
	require.Equal(t, []int64{bases[2], bases[7]}, rows.Bases)
	rows.Rows(func(base, end int64, hashes []byte) {
		require.Equal(t, want[base*16:(end+1)*16], hashes)
	})
	none, err := b.store.SidecarRows(t.Context(), pid, nil)
	require.NoError(t, err)
	require.Empty(t, none.Bases)
}

func TestSidecarPageSkipsAHole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := uuid.New()
	b.exec(`INSERT INTO queen.log_txns SELECT $1, g, g, now(), $2 FROM unnest('{3,1000000,1000001}'::BIGINT[]) AS g`, pid, hash(1))
	for _, step := range []struct {
		after int64
		want  []int64
	}{{-1, []int64{3}}, {3, []int64{1000000, 1000001}}, {1000000, []int64{1000001}}, {1000001, nil}} {
		p, err := b.store.SidecarPage(t.Context(), pid, step.after, 10)
		require.NoError(t, err)
		require.Equal(t, step.want, p.Bases)
	}
}

func TestRule07DedupReadsTakeNoLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	require.NoError(t, b.db.Do(t.Context(), "hold", func(ctx context.Context, conn *pgx.Conn) error {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		if _, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE id = $1 FOR UPDATE`, pid); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT FROM queen.log_txns WHERE partition_id = $1 FOR UPDATE`, pid); err != nil {
			return err
		}
		require.Zero(t, b.laneState("q", "p", uuid.Nil, 0).Start)
		page, err := b.store.SidecarPage(ctx, pid, -1, 10)
		require.NoError(t, err)
		require.Equal(t, []int64{0}, page.Bases)
		rows, err := b.store.SidecarRows(ctx, pid, []int64{0})
		require.NoError(t, err)
		require.Equal(t, []int64{0}, rows.Bases)
		return nil
	}))
}

// The dedup reads go through the key, also when a plan was made for a small table.
func TestDedupReadsNeverScanTheSidecar(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	plans := plansOf(t, b, func(ctx context.Context, conn *pgx.Conn) error {
		for _, call := range []string{
			`SELECT * FROM queen.log_lane_v1('00000000-0000-0000-0000-000000000001', 'q', 'p', 5)`,
			`SELECT * FROM queen.log_sidecar_page_v1('` + pid.String() + `', -1, 10)`,
			`SELECT * FROM queen.log_sidecar_rows_v1('` + pid.String() + `', '{0,5}')`,
		} {
			if _, err := conn.Exec(ctx, call); err != nil {
				return err
			}
		}
		return nil
	})[0]
	require.GreaterOrEqual(t, len(plans), 3)
	for _, p := range plans {
		require.NotContains(t, p, "Seq Scan", "%s", p)
		require.NotContains(t, p, "Gather", "%s", p)
	}
}
