package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestFirstPushCreatesQueueAndPartition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cases := map[string]struct{ namespace, task string }{
		"depot":           {"depot", ""},
		"depot.scan":      {"depot", "scan"},
		"depot.scan.fine": {"depot", "scan"},
		".x":              {"", "x"},
	}
	for name, want := range cases {
		v := b.queued(segment(name, "Default", 1))
		require.EqualValues(t, 0, v.BaseOffset)
		require.WithinDuration(t, time.Now(), v.CreatedAt, time.Minute)

		var namespace, task string
		var lease, window int
		b.one([]any{&namespace, &task, &lease, &window}, `SELECT q.namespace, q.task, q.lease_time, q.dedup_window_seconds
			FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id WHERE p.id = $1 AND q.name = $2`, v.PartitionID, name)
		require.Equal(t, want, struct{ namespace, task string }{namespace, task}, name)
		require.Equal(t, []int{60, 3600}, []int{lease, window})
	}
}

func TestPushWritesSegmentAndSidecarOverOneRange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1, 2))
	v := b.queued(segment("q", "p", 3, 4, 5))
	require.EqualValues(t, 2, v.BaseOffset)

	seg, ok, err := b.store.SegmentAt(t.Context(), v.PartitionID, 3)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, store.Segment{Base: 2, End: 4, CreatedAt: seg.CreatedAt, Blob: []byte("frames [3 4 5]")}, seg)
	require.True(t, v.CreatedAt.Equal(seg.CreatedAt), "the verdict shows the stored stamp")

	var end, last int64
	var stamp time.Time
	var hashes []byte
	b.one([]any{&end, &stamp, &hashes, &last}, `SELECT t.end_offset, t.created_at, t.hashes, p.last_offset
		FROM queen.log_txns t JOIN queen.log_partitions p ON p.id = t.partition_id WHERE t.partition_id = $1 AND t.base_offset = 2`, v.PartitionID)
	require.EqualValues(t, 4, end)
	require.EqualValues(t, 4, last)
	require.True(t, stamp.Equal(seg.CreatedAt))
	require.Equal(t, segment("q", "p", 3, 4, 5).Hashes, hashes)
}

func TestSegmentAtFindsOnlyWhatCovers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1, 2)).PartitionID
	b.queued(segment("q", "p", 3, 4))
	b.queued(segment("q", "p", 5))
	b.exec(`DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 2`, pid)

	for off, base := range map[int64]int64{-1: -1, 0: 0, 1: 0, 2: -1, 3: -1, 4: 4, 5: -1} {
		seg, ok, err := b.store.SegmentAt(t.Context(), pid, off)
		require.NoError(t, err)
		require.Equal(t, base >= 0, ok, "offset %d", off)
		if ok {
			require.Equal(t, base, seg.Base, "offset %d", off)
		}
	}
	_, ok, err := b.store.SegmentAt(t.Context(), uuid.New(), 0)
	require.NoError(t, err)
	require.False(t, ok)
}

func TestDuplicateSegmentIsNotWrittenAndDisturbsNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`SELECT queen.configure_queue_v1('q', '{"dedupWindowSeconds": 0}')`)
	b.queued(segment("q", "p", 1, 2))
	b.queued(segment("q", "p", 2, 3)) // 2 is stored twice while the window is off
	b.exec(`SELECT queen.configure_queue_v1('q', '{}')`)

	v := b.push(segment("q", "other", 2), segment("q", "p", 9, 3, 2, 8, 1), segment("q", "more", 1))
	require.Equal(t, store.PushQueued, v[0].Status, "another partition is another window")
	require.Equal(t, store.PushDuplicate, v[1].Status)
	require.Equal(t, []store.Dup{{Index: 1, Offset: 3}, {Index: 2, Offset: 1}, {Index: 4, Offset: 0}}, v[1].Dups,
		"ascending by frame, the smallest offset of each")
	require.Equal(t, store.PushQueued, v[2].Status)

	require.EqualValues(t, 4, b.queued(segment("q", "p", 9, 8)).BaseOffset, "a duplicate allocates nothing")
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, v[1].PartitionID))
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.log_segments WHERE partition_id = $1`, v[1].PartitionID))
}

func TestDedupWindow(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		window int
		age    string
		want   store.PushStatus
	}{
		"just inside the window is a duplicate":  {60, "55 seconds", store.PushDuplicate},
		"just outside the window is new":         {60, "61 seconds", store.PushQueued},
		"with window 0 nothing is a duplicate":   {0, "0 seconds", store.PushQueued},
		"a larger window sees an older original": {7200, "3700 seconds", store.PushDuplicate},
	}
	b := setup(t)
	for name, c := range cases {
		b.exec(`SELECT queen.configure_queue_v1($1, jsonb_build_object('dedupWindowSeconds', $2::int))`, name, c.window)
		first := b.queued(segment(name, "p", 7))
		b.exec(`UPDATE queen.log_txns SET created_at = now() - $2::text::interval WHERE partition_id = $1`, first.PartitionID, c.age)
		require.Equal(t, c.want, b.push(segment(name, "p", 7))[0].Status, name)
	}
	require.EqualValues(t, 2, b.count(`SELECT count(*) FROM queen.log_txns t JOIN queen.log_partitions p ON p.id = t.partition_id
		JOIN queen.queues q ON q.id = p.queue_id WHERE q.dedup_window_seconds = 0`), "the sidecar is written with the window off")
}

func TestMintedSegmentSkipsTheProbe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.queued(segment("q", "p", 1))
	require.EqualValues(t, 1, b.queued(minted(1)).BaseOffset)
	require.EqualValues(t, 2, b.count(`SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, first.PartitionID),
		"minted hashes enter the sidecar: a client may send one back")
}

// The lane holds id 1 at offset 0 and id 2 at offset 1, its window is 3600 s.
// A mark of 0 that counts hides id 1 from the probe.
func TestMarkCountsOnlyForItsLaneAndWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lane := func() uuid.UUID {
		queue := uuid.NewString()
		b.queued(segment(queue, "p", 1))
		return b.queued(segment(queue, "p", 2)).PartitionID
	}
	cases := map[string]struct {
		pid    func(uuid.UUID) uuid.UUID
		mark   int64
		window int
		want   store.PushStatus
	}{
		"right in everything":               {own, 0, 3600, store.PushQueued},
		"built for a wider window":          {own, 0, 7200, store.PushQueued},
		"at the tip":                        {own, 1, 3600, store.PushQueued},
		"of another lane id":                {func(uuid.UUID) uuid.UUID { return uuid.New() }, 0, 3600, store.PushDuplicate},
		"without a lane id":                 {func(uuid.UUID) uuid.UUID { return uuid.Nil }, 0, 3600, store.PushDuplicate},
		"above the last offset":             {own, 2, 3600, store.PushDuplicate},
		"of before the window was enlarged": {own, 0, 3599, store.PushDuplicate},
		"of no window":                      {own, 0, 0, store.PushDuplicate},
		"that makes no statement":           {own, store.VerifiedNone, 3600, store.PushDuplicate},
	}
	for name, c := range cases {
		pid := lane()
		var queue string
		b.one([]any{&queue}, `SELECT q.name FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id WHERE p.id = $1`, pid)
		v := b.push(marked(segment(queue, "p", 1), c.pid(pid), c.mark, c.window))[0]
		require.Equal(t, c.want, v.Status, "mark %s", name)
		require.Equal(t, pid, v.PartitionID)
	}
}

func own(pid uuid.UUID) uuid.UUID { return pid }

func TestMarkOfADeletedLaneDoesNotCountForItsSuccessor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.queued(segment("q", "p", 1)).PartitionID
	_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
	require.NoError(t, err)
	b.queued(segment("q", "p", 1))
	require.Equal(t, store.PushDuplicate, b.push(marked(segment("q", "p", 1), old, 0, 3600))[0].Status)
}

func TestProbeStartsAtTheRowThatCoversTheMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1, 2)).PartitionID
	b.queued(segment("q", "p", 3, 4, 5)) // offsets 2 to 4
	b.queued(segment("q", "p", 6))

	v := b.push(marked(segment("q", "p", 5, 6), pid, 3, 3600))[0]
	require.Equal(t, []store.Dup{{Index: 0, Offset: 4}, {Index: 1, Offset: 5}}, v.Dups)
	require.EqualValues(t, 6, b.queued(marked(segment("q", "p", 1), pid, 3, 3600)).BaseOffset)
}

func TestProbeIgnoresWhatThePurgeMarkExcludes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	b.queued(segment("q", "p", 2))
	b.exec(`UPDATE queen.log_partitions SET txns_start = 1 WHERE id = $1`, pid)
	require.Equal(t, store.PushQueued, b.push(segment("q", "p", 1))[0].Status)
	require.Equal(t, store.PushDuplicate, b.push(segment("q", "p", 2))[0].Status)
}

func TestOneLaneMayOccurSeveralTimesInACall(t *testing.T) {
	t.Parallel()
	b := setup(t)
	v := b.push(segment("q", "p", 1, 2), segment("q", "r", 1), segment("q", "p", 2, 3), segment("q", "p", 3), segment("q", "r", 4))
	require.Equal(t, []store.PushStatus{store.PushQueued, store.PushQueued, store.PushDuplicate, store.PushQueued, store.PushQueued},
		[]store.PushStatus{v[0].Status, v[1].Status, v[2].Status, v[3].Status, v[4].Status})
	require.Equal(t, []store.Dup{{Index: 0, Offset: 1}}, v[2].Dups)
	require.Equal(t, []int64{0, 0, 2, 1}, []int64{v[0].BaseOffset, v[1].BaseOffset, v[3].BaseOffset, v[4].BaseOffset})
	require.Equal(t, v[0].PartitionID, v[3].PartitionID)
}

func TestRolledBackPushLeavesNoHole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	require.ErrorIs(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var base int64
			if err := tx.QueryRow(ctx, `SELECT (queen.log_push_one_v1('q', 'p', 1, $1, -1, '\x00') ->> 'baseOffset')::bigint`, hash(2)).Scan(&base); err != nil {
				return err
			}
			require.EqualValues(t, 1, base)
			return context.Canceled
		})
	}), context.Canceled)
	require.EqualValues(t, 1, b.queued(segment("q", "p", 2)).BaseOffset)
}

func TestMalformedPushWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cases := map[string]struct{ call, state, text string }{
		"misaligned names": {`SELECT queen.log_push_multi_v1('{q,q}', '{p}', '{1}', ARRAY[$1::bytea], '{-1}', '{x}')`,
			"22023", "QMULTI misaligned arrays"},
		"missing blobs": {`SELECT queen.log_push_multi_v1('{q}', '{p}', '{1}', ARRAY[$1::bytea], '{-1}', NULL)`,
			"22023", "QMULTI misaligned arrays"},
		"misaligned lane ids": {`SELECT queen.log_push_multi_v1('{q}', '{p}', '{1}', ARRAY[$1::bytea], '{-1}', '{x}', NULL, '{}')`,
			"22023", "QMULTI misaligned arrays"},
		"misaligned tenants": {`SELECT queen.log_push_multi_v1('{q}', '{p}', '{1}', ARRAY[$1::bytea], '{-1}', '{x}', '{}')`,
			"22023", "QMULTI misaligned tenants"},
		"hashes of another length": {`SELECT queen.log_push_multi_v1('{q}', '{p}', '{2}', ARRAY[$1::bytea], '{-1}', '{x}')`,
			"22023", "QPUSH bad segment"},
		"a count of 0": {`SELECT queen.log_push_multi_v1('{q}', '{p}', '{0}', ARRAY[substr($1::bytea, 1, 0)], '{-1}', '{x}')`,
			"22023", "QPUSH bad segment"},
		"an empty queue name beside a good one": {`SELECT queen.log_push_multi_v1(ARRAY['q', ''], '{p,p}', '{1,1}', ARRAY[$1::bytea, $1], '{-1,-1}', '{x,x}')`,
			"22023", "QMULTI resolved 1 of 2"},
		"one segment without messages": {`SELECT queen.log_push_one_v1('q', 'p', 0, $1, -1, 'x')`, "22023", "QPUSH bad segment"},
		"one segment without hashes":   {`SELECT queen.log_push_one_v1('q', 'p', 1, substr($1::bytea, 1, 15), -1, 'x')`, "22023", "QPUSH bad segment"},
		"one segment without a queue":  {`SELECT queen.log_push_one_v1('', 'p', 1, $1, -1, 'x')`, "22023", "QPUSH unknown queue/partition"},
		"one segment of a lane that is gone": {`SELECT queen.log_push_one_v1('q', 'p', 1, $1, -1, 'x', gen_random_uuid())`,
			"40001", "QPUSH partition"},
	}
	for name, c := range cases {
		var pg *pgconn.PgError
		err := b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, c.call, hash(1))
			return err
		})
		require.ErrorAs(t, err, &pg, name)
		require.Equal(t, c.state, pg.Code, name)
		require.Contains(t, pg.Message, c.text, name)
	}
	for _, table := range []string{"queues", "log_partitions", "log_segments", "log_txns"} {
		require.Zero(t, b.count(`SELECT count(*) FROM queen.`+table), table)
	}
	_, err := b.store.PushMulti(t.Context(), []store.PushSegment{segment("", "p", 1)})
	require.Equal(t, store.Permanent, store.Classify(err))
	require.False(t, store.Ambiguous(err))
	require.Empty(t, b.push(), "no segments, no verdicts")
}

func TestTenantsShareNamesAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mine, theirs := segment("q", "p", 1), segment("q", "p", 1)
	theirs.Tenant = uuid.New()
	v := b.push(mine, theirs)
	require.NotEqual(t, v[0].PartitionID, v[1].PartitionID)
	for _, verdict := range v {
		require.Equal(t, store.PushQueued, verdict.Status)
		require.Zero(t, verdict.BaseOffset)
	}
	_, err := b.store.DeleteQueue(t.Context(), theirs.Tenant, "q")
	require.NoError(t, err)
	require.Equal(t, store.PushDuplicate, b.push(mine)[0].Status, "the other tenant's queue is untouched")
}

func TestStampNeverGoesBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	b.exec(`UPDATE queen.log_partitions SET last_write_at = now() + interval '1 hour' WHERE id = $1`, pid)
	ahead := b.queued(segment("q", "p", 2)).CreatedAt
	require.Greater(t, time.Until(ahead), 50*time.Minute, "a clock behind last_write_at does not count")

	// last_write_at may be a second behind the newest segment.
	b.exec(`UPDATE queen.log_txns SET created_at = created_at + interval '900 ms' WHERE partition_id = $1 AND base_offset = 1`, pid)
	require.Equal(t, ahead.Add(900*time.Millisecond), b.queued(segment("q", "p", 3)).CreatedAt)
	require.False(t, b.queued(segment("q", "p", 4)).CreatedAt.Before(ahead.Add(900*time.Millisecond)))
}

func TestLastWriteIsRewrittenOnlyWhenASecondOld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	// In the future, so that the newest sidecar row and not the clock decides the stamp.
	b.exec(`UPDATE queen.log_partitions SET last_write_at = date_trunc('second', now()) + interval '1 hour' WHERE id = $1`, pid)
	for i, c := range []struct {
		late      string
		rewritten bool
	}{{"0", false}, {"900 ms", false}, {"1000 ms", false}, {"1001 ms", true}} {
		var before, after time.Time
		b.one([]any{&before}, `SELECT last_write_at FROM queen.log_partitions WHERE id = $1`, pid)
		b.exec(`UPDATE queen.log_txns SET created_at = $2::timestamptz + $3::text::interval WHERE partition_id = $1`, pid, before, c.late)
		v := b.queued(minted(uint64(100 + i)))
		b.one([]any{&after}, `SELECT last_write_at FROM queen.log_partitions WHERE id = $1`, pid)
		require.Equal(t, c.rewritten, !after.Equal(before), "stamp %s after last_write_at", c.late)
		if c.rewritten {
			require.True(t, after.Equal(v.CreatedAt))
		}
	}
}

func minted(id uint64) store.PushSegment {
	s := segment("q", "p", id)
	s.Verified = store.VerifiedMinted
	return s
}

func TestPushesWithinASecondAreHeapOnlyUpdates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	const pushes = 40
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		numbers := func() (updated, hot int64, at time.Time, err error) {
			if _, err = conn.Exec(ctx, `SELECT pg_stat_force_next_flush()`); err == nil {
				err = conn.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd, clock_timestamp() FROM pg_stat_user_tables
					WHERE schemaname = 'queen' AND relname = 'log_partitions'`).Scan(&updated, &hot, &at)
			}
			return updated, hot, at, err
		}
		updated, hot, start, err := numbers()
		if err != nil {
			return err
		}
		for i := range pushes {
			if _, err := conn.Exec(ctx, `SELECT queen.log_push_one_v1('q', 'p', 1, $1, -1, '\x00')`, hash(uint64(100+i))); err != nil {
				return err
			}
		}
		updatedAfter, hotAfter, end, err := numbers()
		require.EqualValues(t, pushes, updatedAfter-updated)
		// One rewrite of last_write_at per second that passed, and two updates
		// that found their page full.
		cold := int64(end.Sub(start).Seconds()) + 1 + 2
		require.GreaterOrEqual(t, hotAfter-hot, pushes-cold)
		return err
	}))
}
