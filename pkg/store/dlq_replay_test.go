package store_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// buried is a lane with one dead letter of a group.
func (b *bench) buried(queue, group string) (pid, id uuid.UUID) {
	b.t.Helper()
	pid = b.queued(segment(queue, "p", 1)).PartitionID
	b.one([]any{&id}, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, payload)
		VALUES ($1, $2, 0, 't', '{"a": 1}') RETURNING id`, pid, group)
	return pid, id
}

func (b *bench) replay(id uuid.UUID, queue string) store.Replayed {
	b.t.Helper()
	out, err := b.store.DLQReplay(b.t.Context(), replayOf(id, queue))
	require.NoError(b.t, err)
	return out
}

func replayOf(id uuid.UUID, queue string) store.Replay {
	return store.Replay{Tenant: store.DefaultTenant(), ID: id, Queue: queue, Partition: "p", Hash: hash(77), Blob: []byte("frames")}
}

func TestAReplayIsOneTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, id := b.buried("q", "g")
	letter, found, err := b.store.DLQLetter(t.Context(), store.DefaultTenant(), id)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, store.Letter{ID: id, Queue: "q", Partition: "p", Group: "g", TransactionID: "t", Payload: []byte(`{"a": 1}`)}, letter)

	before := b.count(`SELECT count(*) FROM queen.log_segments`)
	require.Equal(t, store.Replayed{Result: store.ReplayMoved, Offset: 1}, b.replay(id, "q"))
	require.Equal(t, before+1, b.count(`SELECT count(*) FROM queen.log_segments`))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_dlq`))
	require.Equal(t, int64(1), b.count(`SELECT count(DISTINCT xmin::text) FROM (
		SELECT s.xmin FROM queen.log_segments AS s WHERE s.base_offset = 1 UNION ALL SELECT t.xmin FROM queen.log_txns AS t WHERE t.base_offset = 1) AS x`))
	require.Equal(t, store.Replayed{Result: store.ReplayGone}, b.replay(id, "q"))
	_, found, err = b.store.DLQLetter(t.Context(), store.DefaultTenant(), id)
	require.NoError(t, err)
	require.False(t, found)
}

func TestReplaysThatAreRefusedCreateNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, id := b.buried("q", "g")
	_, timer := b.buried("q2", store.TimerGroup)
	foreign := replayOf(id, "new")
	foreign.Tenant = uuid.New()
	for name, r := range map[string]store.Replay{"unknown": replayOf(uuid.New(), "new"), "foreign": foreign, "a timer's": replayOf(timer, "new")} {
		out, err := b.store.DLQReplay(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, store.ReplayGone, out.Result, name)
	}
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.queues`))
	require.Equal(t, int64(2), b.count(`SELECT count(*) FROM queen.log_dlq`))
}

func TestAReplayLooksForItsTwinInTheWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, id := b.buried("q", "g")
	b.queued(segment("q", "p", 5, 77))
	require.Equal(t, store.Replayed{Result: store.ReplayDuplicate, Offset: 2}, b.replay(id, "q"))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_dlq`))
	b.exec(`UPDATE queen.log_txns SET created_at = created_at - INTERVAL '2 hours'`)
	require.Equal(t, store.Replayed{Result: store.ReplayMoved, Offset: 3}, b.replay(id, "q"), "older than the window")
}

// The lane is locked before the letter: a deletion of the queue has the lanes when it
// deletes the letters.
func TestAReplayThatWaitsForItsLaneLeavesTheLetterFree(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	pid, id := b.buried("q", "g")
	release := b.hold(`SELECT FROM queen.log_partitions WHERE id = $1 FOR UPDATE`, pid)
	done := make(chan store.Replayed, 1)
	go func() {
		out, err := b.store.DLQReplay(t.Context(), replayOf(id, "q"))
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	b.waiting(1)
	b.exec(`SELECT FROM queen.log_dlq FOR UPDATE NOWAIT`)
	n, err := b.store.DLQDelete(t.Context(), store.DefaultTenant(), pid, "t")
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	release()
	require.Equal(t, store.ReplayGone, (<-done).Result)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_segments`), "nothing was written")
}

// What was pushed while a replay waited is compared under the lock.
func TestAReplayMeetsATwinThatCameWhileItWaited(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	_, id := b.buried("q", "g")
	release := b.hold(`SELECT queen.log_push_one_v1('q', 'p', 1, $1, -1, 'x'::bytea)`, hash(77))
	done := make(chan store.Replayed, 1)
	go func() {
		out, err := b.store.DLQReplay(t.Context(), replayOf(id, "q"))
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	b.waiting(1)
	release()
	require.Equal(t, store.Replayed{Result: store.ReplayDuplicate, Offset: 1}, <-done)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_dlq`))
}

func TestAPurgeLeavesWhatAReplayHolds(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	_, id := b.buried("q", "g")
	_, _ = b.buried("q3", "g")
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") SELECT partition_id, 'g', 1 FROM queen.log_dlq WHERE id = $1`, id)
	release := b.hold(`SELECT FROM queen.log_dlq WHERE id = $1 FOR UPDATE`, id)
	f := store.DLQFilter{Tenant: store.DefaultTenant(), Queue: "q"}
	n, err := b.store.DLQPurge(t.Context(), f, 10)
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	release()
	n, err = b.store.DLQPurge(t.Context(), f, 10)
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_dlq`), "that of another queue")
}
