package enginetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

// behind stores messages as another broker would whose hints are lost.
func (e *engine) behind(queue, partition string, n int) {
	e.t.Helper()
	packer, err := segment.NewPacker(3)
	require.NoError(e.t, err)
	frames := make([]segment.Frame, n)
	for i := range frames {
		frames[i] = segment.Frame{MessageID: uuid.New(), TransactionID: uuid.NewString(), Payload: []byte(fmt.Sprint(i))}
	}
	blob, hashes, err := packer.Pack(frames)
	require.NoError(e.t, err)
	_, err = e.store.PushBundle(e.t.Context(), []store.PushSegment{{
		Tenant: tenant, Queue: queue, Partition: partition, Count: n, Hashes: hashes, Blob: blob, Verified: store.VerifiedNone,
	}}, store.WaitForLocks)
	require.NoError(e.t, err)
}

func (e *engine) exec(sql string, args ...any) {
	e.t.Helper()
	require.NoError(e.t, e.db.Do(e.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

// parked is a long poll under way.
func (e *engine) parked(queue string, options ...option) <-chan []message {
	out := make(chan []message, 1)
	go func() {
		ms, err := e.try(context.Background(), queue, append(options, waiting(20*time.Second))...)
		if err != nil {
			e.t.Error(err)
		}
		out <- ms
	}()
	return out
}

func TestRule11ALostHintCostsAtMostTwoSeconds(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for queue, options := range map[string][]option{
		"any": {group("g")}, "one": {group("g"), of("p")},
	} {
		e.behind(queue, "p", 1)
		require.Len(t, e.popped(queue, append(options, autoAck)...), 1)
		for range 3 { // each is announced to nobody
			out := e.parked(queue, append(options, autoAck)...)
			select {
			case <-out:
				require.Fail(t, "nothing is there", queue)
			case <-time.After(300 * time.Millisecond): // it has looked by now
			}
			e.behind(queue, "p", 1)
			began := time.Now()
			require.Len(t, <-out, 1, queue)
			require.Less(t, time.Since(began), 2*time.Second, queue)
		}
	}
}

func TestRule12ARecordDeletedBehindTheBrokersBackIsSeededAnew(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "a", 2)...)
	require.Len(t, e.popped("q", group("g"), autoAck), 2)
	e.queued(items("q", "b", "b", 2)...)
	require.Len(t, e.popped("q", group("g"), autoAck), 2, "through the ring")
	e.exec(`DELETE FROM queen.log_consumers WHERE consumer_group = 'g'`)
	e.exec(`DELETE FROM queen.consumer_groups_metadata WHERE consumer_group = 'g'`)
	e.queued(items("q", "c", "c", 1)...)

	// It starts anew, and whatever its subscription says now is recorded: by this pop
	// or, while an empty scan holds the registration of the group, by the next.
	got, records := map[string]bool{}, 0
	require.Eventually(t, func() bool {
		for _, m := range e.popped("q", group("g"), autoAck, partitions(10)) {
			got[m.TransactionID] = true
		}
		require.NoError(t, e.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = 'g'`).Scan(&records)
		}))
		return len(got) == 5 && records == 1
	}, 10*time.Second, 10*time.Millisecond)
}

func TestRule14ALaneWhoseRowWasLockedIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.queued(items("q", "a", "a", 1)...)
	require.Len(t, e.popped("q", group("g"), autoAck), 1)
	conn, err := e.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT 1 FROM queen.log_consumers WHERE consumer_group = 'g' FOR UPDATE`)
	require.NoError(t, err)

	e.queued(item("q", "a", "held"))
	out := e.parked("q", group("g"))
	select {
	case <-out:
		require.Fail(t, "the lane is locked")
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, tx.Commit(t.Context()))
	began := time.Now()
	require.Equal(t, []string{"held"}, ids(<-out))
	require.Less(t, time.Since(began), 500*time.Millisecond, "it was not left for the re-check")
}

func TestSmallPopsOfALargeSegmentDeliverEveryFrameInOrder(t *testing.T) {
	t.Parallel()
	e := setup(t)
	const n = 500
	e.behind("q", "p", n)
	for i := 0; i < n; i += 5 {
		take := []option{group("g"), batch(5), autoAck}
		if i%2 == 0 {
			take = append(take, of("p"))
		}
		ms := e.popped("q", take...)
		require.Len(t, ms, 5, i)
		for k, m := range ms {
			require.Equal(t, fmt.Sprint(i+k), string(m.Data))
		}
	}
	require.Empty(t, e.popped("q", group("g")))
}
