package store_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// measure walks over all segments, one or two a page.
func (b *bench) measure(page int) (steps int) {
	b.t.Helper()
	walk, turn, err := b.store.BeginRetainedBytesPaged(b.t.Context(), 0, page)
	require.NoError(b.t, err)
	require.Equal(b.t, store.StatsDone, turn.State)
	for ; !walk.Finished(); steps++ {
		turn, err := walk.Step(b.t.Context())
		require.NoError(b.t, err)
		require.Equal(b.t, store.StatsTurn{State: store.StatsDone}, turn)
	}
	return steps
}

func (b *bench) retained(queue string) (segments, bytes int64, at *time.Time) {
	b.t.Helper()
	b.one([]any{&segments, &bytes, &at}, `SELECT segment_count, retained_bytes, retained_bytes_at FROM queen.stats WHERE stat_key = $1`, b.queueID(queue))
	return segments, bytes, at
}

func TestRetainedBytesAreMeasuredPerQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("empty", `{}`, false)
	large := fresh("n.q", "p", 1)
	large.Blob = make([]byte, 10_000) // stored out of line
	_, _ = rand.Read(large.Blob)
	small := fresh("n.q", "r", 3)
	small.Blob = []byte("seven..")
	b.push(large, small)
	b.push(fresh("n.q", "p", 1), fresh("n.r", "p", 1)) // of a byte each
	b.refresh()

	var before, after string
	const others = `SELECT (to_jsonb(s) - 'segment_count' - 'retained_bytes' - 'retained_bytes_at')::text FROM queen.stats AS s WHERE stat_key = $1`
	b.one([]any{&before}, others, b.queueID("n.q"))
	for page, steps := range map[int]int{1: 6, 2: 4, 4: 3, 5: 2} {
		b.exec(`UPDATE queen.stats SET segment_count = 99, retained_bytes = 99, retained_bytes_at = NULL`)
		require.Equal(t, steps, b.measure(page), "pages of %d: the rows, a look behind a full page, and the writing", page)
		for queue, want := range map[string][]int64{"n.q": {3, 10_008}, "n.r": {1, 1}, "empty": {0, 0}} {
			segments, bytes, at := b.retained(queue)
			require.Equal(t, want, []int64{segments, bytes}, queue)
			require.NotNil(t, at)
		}
	}
	b.one([]any{&after}, others, b.queueID("n.q"))
	require.Equal(t, before, after, "nothing else is written")

	b.refresh()
	segments, bytes, at := b.retained("n.q")
	require.Equal(t, []int64{3, 10_008}, []int64{segments, bytes}, "a refresh leaves them alone")
	require.NotNil(t, at)
	var total int64
	b.one([]any{&segments, &total}, `SELECT segment_count, retained_bytes FROM queen.stats WHERE stat_type = 'system'`)
	require.Equal(t, []int64{4, 10_009}, []int64{segments, total}, "and adds them up")
}

func TestMeasuringReadsNoBlob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large := fresh("q", "p", 1)
	large.Blob = make([]byte, 10_000)
	_, _ = rand.Read(large.Blob)
	b.queued(large)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(t.Context()) }()
	tx, err := session.Begin(t.Context())
	require.NoError(t, err)
	var bytes int64
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT r_bytes FROM queen.log_stats_bytes_page_v1('00000000-0000-0000-0000-000000000000', 0, 9)`).Scan(&bytes))
	require.EqualValues(t, 10_000, bytes)
	r, err := readsOf(t.Context(), tx, "log_segments")
	require.NoError(t, err)
	require.Equal(t, reads{rows: 1}, r)
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestAWalkIsDueOnceForAllReplicas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	walk, turn, err := b.store.BeginRetainedBytes(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, store.StatsDone, turn.State)
	require.False(t, walk.Finished())

	walk, turn, err = b.store.BeginRetainedBytes(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, store.StatsEarly, turn.State, "also when the first is never finished")
	require.Nil(t, walk)
	require.InDelta(t, 60, turn.Wait.Minutes(), 1)

	b.exec(`UPDATE queen.system_state SET updated_at = now() - interval '1 hour' WHERE key = 'stats_retained_bytes'`)
	_, turn, err = b.store.BeginRetainedBytes(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, store.StatsDone, turn.State)
}

func TestAWalkGoesOnAfterABusyOrFailedStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.push(segment("q", "p", 1), segment("q", "r", 1))
	b.refresh()
	b.meanwhile(`SELECT pg_advisory_xact_lock(737002)`, func() {
		_, turn, err := b.store.BeginRetainedBytes(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, store.StatsTurn{State: store.StatsBusy}, turn)
	})
	walk, _, err := b.store.BeginRetainedBytesPaged(t.Context(), 0, 1)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for !walk.Finished() {
		b.meanwhile(`SELECT pg_advisory_xact_lock(737002)`, func() {
			turn, err := walk.Step(t.Context())
			require.NoError(t, err)
			require.Equal(t, store.StatsTurn{State: store.StatsBusy}, turn)
		})
		_, err := walk.Step(ended)
		require.ErrorIs(t, err, context.Canceled)
		_, err = walk.Step(t.Context())
		require.NoError(t, err)
	}
	segments, _, _ := b.retained("q")
	require.EqualValues(t, 2, segments)
}
