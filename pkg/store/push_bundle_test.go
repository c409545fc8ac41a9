package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// known gives a segment the id of its lane.
func known(seg store.PushSegment, pid uuid.UUID) store.PushSegment {
	seg.PartitionID = pid
	return seg
}

// whileHeld runs fn while another transaction holds a lane.
func (b *bench) whileHeld(pid uuid.UUID, fn func()) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "hold", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, pid); err != nil {
				return err
			}
			fn()
			return nil
		})
	}))
}

func TestRule13AHeldLaneDoesNotStopItsBundle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := b.queued(fresh("q", "held", 1)).PartitionID
	for _, n := range []int{1, 2, 9} {
		segs := []store.PushSegment{fresh("q", "held", 1)}
		for i := 1; i < n; i++ {
			segs = append(segs, fresh("q", fmt.Sprint("free", i), 1))
		}
		b.whileHeld(held, func() {
			verdicts, err := b.store.PushBundle(t.Context(), segs, store.SkipLocked)
			require.NoError(t, err)
			require.Equal(t, store.PushBusy, verdicts[0].Status)
			require.Equal(t, held, verdicts[0].PartitionID)
			for _, v := range verdicts[1:] {
				require.Equal(t, store.PushQueued, v.Status)
			}
			for i := 1; i < n; i++ {
				segs[i].PartitionID = verdicts[i].PartitionID
			}
			segs[0].PartitionID = held
			verdicts, err = b.store.PushBundle(t.Context(), segs, store.SkipLocked)
			require.NoError(t, err, "by known ids")
			require.Equal(t, store.PushBusy, verdicts[0].Status)
		})
		require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_segments WHERE partition_id = $1`, held), "a busy lane wrote nothing")
	}
}

func TestALockWaitEndsTheWholeCall(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := b.queued(fresh("q", "held", 1)).PartitionID
	b.whileHeld(held, func() {
		_, err := b.store.PushBundle(t.Context(), []store.PushSegment{fresh("q", "held", 1), fresh("q", "free", 1)}, store.LockWait(time.Millisecond))
		require.ErrorContains(t, err, "55P03")
		require.Equal(t, store.Transient, store.Classify(err))
		require.False(t, store.Ambiguous(err))
	})
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.log_segments`))
	verdicts, err := b.store.PushBundle(t.Context(), []store.PushSegment{fresh("q", "held", 1)}, store.LockWait(time.Second))
	require.NoError(t, err)
	require.Equal(t, store.PushQueued, verdicts[0].Status)
}

func TestRule01AnIDThatIsNotTheLanesLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.queued(fresh("q", "other", 1)).PartitionID
	mine := b.queued(fresh("q", "mine", 1)).PartitionID
	for _, segs := range [][]store.PushSegment{
		{known(fresh("q", "mine", 1), other)},
		{known(fresh("q", "mine", 1), uuid.New())},
		{known(fresh("q", "mine", 1), other), known(fresh("q", "third", 1), mine)},
		{known(fresh("q", "mine", 1), mine), known(fresh("q", "fourth", 1), uuid.New())},
	} {
		require.Equal(t, mine, b.push(segs...)[0].PartitionID)
	}
	require.EqualValues(t, 0, b.count(`SELECT last_offset FROM queen.log_partitions WHERE id = $1`, other))
	require.EqualValues(t, 4, b.count(`SELECT last_offset FROM queen.log_partitions WHERE id = $1`, mine))
}

func TestSuspectsAreReadBelowTheMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1, 2)).PartitionID // offsets 0, 1
	b.queued(segment("q", "p", 3))
	b.queued(segment("q", "p", 4))
	other := b.queued(segment("q", "p2", 1)).PartitionID

	suspected := func(seg store.PushSegment, mark int64, bases ...int64) store.PushSegment {
		seg = marked(seg, pid, mark, 3600)
		seg.Suspects = bases
		return seg
	}
	v := b.push(suspected(segment("q", "p", 2, 4, 3), 3, 0, 3))[0]
	require.Equal(t, []store.Dup{{Index: 0, Offset: 1}, {Index: 1, Offset: 3}}, v.Dups, "3 hides under the mark and is not suspected")
	v = b.push(marked(segment("q", "p2", 9), other, 0, 3600), suspected(segment("q", "p", 9, 2), 3, 0, 2, 77))[1]
	require.Equal(t, []store.Dup{{Index: 1, Offset: 1}}, v.Dups, "in a bundle; a base that does not exist is no fault")
	require.Equal(t, store.PushDuplicate, b.push(suspected(segment("q", "p", 3), 99, 0))[0].Status, "a mark that does not count: the whole window is probed")
	require.Equal(t, store.PushQueued, b.push(suspected(segment("q", "p", 9), 3, 0, 2, 3))[0].Status)
}
