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

// locked holds the cursor of a group in a transaction until it is released.
func (b *bench) locked(pid uuid.UUID, group string) (release func()) {
	b.t.Helper()
	held, free, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- b.db.Do(context.Background(), "hold", func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2 FOR UPDATE`, pid, group)
				close(held)
				<-free
				return err
			})
		})
	}()
	<-held
	return func() {
		close(free)
		require.NoError(b.t, <-done)
	}
}

// waiting blocks until a session waits for a lock of this database.
func (b *bench) waiting(n int64) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) >= n
	}, 20*time.Second, 5*time.Millisecond)
}

func wholeRow(pid uuid.UUID, group, worker string, end int64, count int) store.AckRow {
	return store.AckRow{PartitionID: pid, Group: group, Worker: worker, End: end, Count: count}
}

func TestAWholeBatchOfWhichAPartIsCommittedIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	refused := []store.AckOutcome{{Error: "batch partly committed"}}
	for _, g := range []string{"one", "two", "three"} {
		b.leased(pid, g, "w", 0, 4)
		_, err := b.store.AckByHash(t.Context(), pid, g, "w", hashes(2), statuses(ok))
		require.NoError(t, err)
	}
	got, err := b.store.AckWhole(t.Context(), []store.AckRow{wholeRow(pid, "one", "w", 4, 4)}, true)
	require.NoError(t, err)
	require.Equal(t, refused, got)
	got, err = b.store.AckWhole(t.Context(), []store.AckRow{wholeRow(pid, "two", "w", 4, 4), wholeRow(pid, "three", "w", 4, 4)}, false)
	require.NoError(t, err)
	require.Equal(t, append(refused, refused...), got)
	require.EqualValues(t, 2, b.state(pid, "one").Committed)

	got, err = b.store.AckMulti(t.Context(), []store.AckRow{wholeRow(pid, "two", "w", 4, 2)})
	require.NoError(t, err)
	require.Equal(t, []store.AckOutcome{{OK: true, Acked: 2, Released: true}}, got, "it is no matter to the other form")
	require.Equal(t, finished(4, 14), b.state(pid, "two"))

	b.leased(pid, "four", "w", 0, 4)
	got, err = b.store.AckWhole(t.Context(), []store.AckRow{wholeRow(pid, "four", "w", 4, 4)}, false)
	require.NoError(t, err)
	require.Equal(t, []store.AckOutcome{{OK: true, Acked: 4, Released: true}}, got)
	require.Equal(t, finished(4, 14), b.state(pid, "four"))
}

// Design rule 13, in the database.
func TestRule13ABundleOfAcksSkipsALockedCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	for _, g := range []string{"a", "b", "c"} {
		b.leased(pid, g, "w", 0, 4)
	}
	release := b.locked(pid, "b")
	rows := []store.AckRow{
		wholeRow(pid, "c", "w", 4, 4), wholeRow(pid, "b", "w", 4, 4), wholeRow(uuid.New(), "b", "w", 4, 4), wholeRow(pid, "a", "w", 4, 4),
	}
	got, err := b.store.AckWhole(t.Context(), rows, false)
	require.NoError(t, err)
	moved := store.AckOutcome{OK: true, Acked: 4, Released: true}
	require.Equal(t, []store.AckOutcome{moved, {Error: store.AckBusy}, {Error: "consumer not found"}, moved}, got)

	done := make(chan []store.AckOutcome)
	for _, batch := range [][]store.AckRow{rows[1:2], rows[1:3]} {
		go func() {
			got, err := b.store.AckWhole(context.Background(), batch, true)
			if err != nil {
				t.Error(err)
			}
			done <- got[:1]
		}()
	}
	b.waiting(2)
	release()
	require.ElementsMatch(t, []store.AckOutcome{moved, {Error: "invalid or expired lease"}}, append(<-done, <-done...))
	require.Equal(t, finished(4, 14), b.state(pid, "b"))
}

func TestManyRowsOfOneBundle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	var rows []store.AckRow
	for i := range 300 {
		g := fmt.Sprint("g", i)
		b.leased(pid, g, "w", 0, 4)
		rows = append(rows, wholeRow(pid, g, "w", 4, 4))
	}
	rows[7].Worker = "x"
	rows = append(rows, rows[9])
	for _, wait := range []bool{false, true} {
		got, err := b.store.AckWhole(t.Context(), rows, wait)
		require.NoError(t, err)
		for i, out := range got {
			require.Equal(t, !wait && i != 7 && i != 300, out.OK, "%d: %s", i, out.Error)
		}
	}
	require.EqualValues(t, 299, b.count(`SELECT count(*) FROM queen.log_consumers WHERE committed = 4 AND total_consumed = 14`))
}

// A second row with a good lease wins where the first one's is wrong.
func TestTheFirstGoodRowOfACursorIsTaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, "g", "w", 0, 4)
	got, err := b.store.AckWhole(t.Context(), []store.AckRow{
		wholeRow(pid, "g", "x", 4, 1), wholeRow(pid, "g", "w", 3, 2), wholeRow(pid, "g", "w", 4, 3), wholeRow(pid, "g", "", 4, 3),
	}, false)
	require.NoError(t, err)
	require.Equal(t, []store.AckOutcome{
		{Error: "invalid or expired lease"}, {OK: true, Acked: 2, Released: true}, {Error: "invalid or expired lease"}, {Error: "no leased batch"},
	}, got)
	require.Equal(t, free(3, 12, 1), b.state(pid, "g"))
}

func TestCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.cursorAt(pid, "g", 5)
	at, found, err := b.store.Cursor(t.Context(), pid, "g")
	require.NoError(t, err)
	require.True(t, found)
	require.EqualValues(t, 5, at)
	_, found, err = b.store.Cursor(t.Context(), pid, "h")
	require.NoError(t, err)
	require.False(t, found)
}

func TestLeasesAreFoundAndRenewedByTheirCursors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p, r := b.lane(), b.queued(segment("q", "r", 1, 2)).PartitionID
	b.leased(p, "a", "w", 0, 4)
	b.leased(r, "a", "w", -1, 1)
	b.leased(r, "b", "x", -1, 1)
	b.leased(r, "gone", "w", -1, 1)
	b.expireLease(r, "gone")
	b.cursorAt(r, "free", 0)
	at := []store.CursorKey{{PartitionID: p, Group: "a"}, {PartitionID: r, Group: "a"}}
	found, err := b.store.FindLeases(t.Context(), []string{"w", "x", "y", ""})
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.ElementsMatch(t, at, found["w"])
	require.Equal(t, []store.CursorKey{{PartitionID: r, Group: "b"}}, found["x"])

	all := append(at, store.CursorKey{PartitionID: r, Group: "gone"}, store.CursorKey{PartitionID: r, Group: "b"},
		store.CursorKey{PartitionID: r, Group: "free"}, store.CursorKey{PartitionID: uuid.New(), Group: "a"})
	n, expires, err := b.store.RenewLanes(t.Context(), "w", 300, all)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	when, err := time.Parse(time.RFC3339Nano, expires)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(300*time.Second), when, time.Minute)
	n, again, err := b.store.RenewLanes(t.Context(), "w", 1, at[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, expires, again, "never shortened")
	for _, worker := range []string{"y", ""} {
		n, expires, err = b.store.RenewLanes(t.Context(), worker, 300, all)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Empty(t, expires)
	}
	require.Negative(t, b.seconds(r, "gone"), "nothing is revived")
	require.LessOrEqual(t, b.seconds(r, "b"), 60.0)
}

// seconds is how long a lease still runs.
func (b *bench) seconds(pid uuid.UUID, group string) (left float64) {
	b.t.Helper()
	b.one([]any{&left}, `SELECT extract(epoch FROM lease_expires_at - now())::float8 FROM queen.log_consumers
		WHERE partition_id = $1 AND consumer_group = $2`, pid, group)
	return left
}

// A lease and its ack must not write index entries: it would cost them half as
// much WAL again.
func TestALeaseAndItsAckAreHotUpdates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rounds = 20
	for i := range rounds {
		b.queued(fresh("q", "p", 1+i%2))
	}
	var updated, hot int64
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for i := range rounds {
				worker := fmt.Sprint("w", i)
				if _, err := tx.Exec(ctx, `SELECT FROM queen.log_pop_specific_bin_v1('q', 'p', 'g', 1, 60, $1, FALSE, 'all', '')`, worker); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `SELECT queen.log_ack_at_v1(partition_id, consumer_group, worker_id, batch_end, TRUE, 1, TRUE)
					FROM queen.log_consumers WHERE worker_id = $1`, worker)
				if err != nil {
					return err
				}
			}
			return tx.QueryRow(ctx, `SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c)
				FROM (SELECT 'queen.log_consumers'::regclass) AS t (c)`).Scan(&updated, &hot)
		})
	}))
	require.EqualValues(t, 2*rounds, updated)
	// In one transaction no version can be cleaned up, so that a page fills.
	require.Greater(t, hot, updated*3/4)
	require.Zero(t, b.count(`SELECT count(*) FROM pg_indexes WHERE tablename = 'log_consumers' AND indexdef LIKE '%worker%'`))
}

// The search of an ack takes place without a lock, so the cursor may move while
// it is under way.
func TestACursorThatMovesDuringTheSearch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seen  string // the state in which the ids are searched
		now   string // the state in which the ack finds the row
		acked []uint64
		want  store.AckOutcome
		at    int64
	}{
		"committed meanwhile": {
			`committed = 0, batch_end = 4`, `committed = 2`, []uint64{1, 2, 3},
			store.AckOutcome{OK: true, Acked: 1, Offset: 3, Noop: []int{0, 1}}, 3,
		},
		"all of the batch": {
			`committed = 0, batch_end = 4`, `committed = 4, batch_end = NULL`, []uint64{1, 4, 6, 99},
			store.AckOutcome{OK: true, Acked: 2, Offset: 6, Noop: []int{0, 1}, Unresolved: []int{3}}, 6,
		},
		"leased anew": {
			`committed = 4, batch_end = NULL`, `batch_end = 6`, []uint64{2, 5, 7},
			store.AckOutcome{OK: true, Acked: 1, Offset: 5, Noop: []int{0}, Unresolved: []int{2}}, 5,
		},
		"several batches further": {
			`committed = 0, batch_end = 1`, `committed = 5, batch_end = 7`, []uint64{0, 1, 3, 5, 6, 99},
			store.AckOutcome{OK: true, Acked: 1, Offset: 6, Noop: []int{0, 1, 2, 3}, Unresolved: []int{5}}, 6,
		},
		"moved back": {
			`committed = 5, batch_end = NULL`, `committed = 2`, []uint64{1, 4, 99},
			store.AckOutcome{OK: true, Acked: 2, Offset: 4, Noop: []int{0}, Unresolved: []int{2}}, 4,
		},
		"leased for the first time": {
			`committed = 0, batch_end = NULL`, `committed = 0, batch_end = 6`, []uint64{3},
			store.AckOutcome{OK: true, Acked: 3, Offset: 3}, 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			pid := b.lane()
			b.cursorAt(pid, group, 0)
			b.exec(`UPDATE queen.log_consumers SET ` + c.seen)
			var raw store.RawJSON
			require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
				ids := make([][]byte, len(c.acked))
				for i, id := range c.acked {
					ids[i] = hash(id)
				}
				var committed, end *int64
				var offs []*int64
				err := conn.QueryRow(ctx, `SELECT o_committed, o_batch_end, o_offs FROM queen.log_ack_seek_v1($1, $2, '', $3)`,
					pid, group, ids).Scan(&committed, &end, &offs)
				if err != nil {
					return err
				}
				if _, err = conn.Exec(ctx, `UPDATE queen.log_consumers SET `+c.now); err != nil {
					return err
				}
				return conn.QueryRow(ctx, `SELECT queen.log_ack_decide_v1($1, $2, '', $3, NULL, $4, $5, $6)`,
					pid, group, ids, committed, end, offs).Scan(&raw)
			}))
			got := object(t, raw)
			require.Equal(t, true, got["ok"])
			require.EqualValues(t, c.want.Acked, got["acked"])
			require.EqualValues(t, c.at, got["off"])
			require.Len(t, got["noopHashes"], len(c.want.Noop))
			require.Len(t, got["unresolvedHashes"], len(c.want.Unresolved))
			require.Equal(t, c.at, b.state(pid, group).Committed)
		})
	}
}

// A search for an id that is nowhere holds no lock: the cursor can be moved
// while it lasts.
func TestASearchHoldsNoCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 3, 6)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT queen.log_ack_seek_v1($1, $2, 'w', $3)`, pid, group, [][]byte{hash(1), hash(99)})
			b.exec(`SELECT FROM queen.log_consumers FOR UPDATE NOWAIT`)
			return err
		})
	}))
	out, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(1, 99, 5), nil)
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Acked: 2, Offset: 5, Noop: []int{0}, Unresolved: []int{1}}, out)
}

func TestATransactionAcksWholeBatches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, "a", "w", 0, 4)
	b.leased(pid, "b", "w", 0, 4)
	tx := store.Transaction{Tenant: store.DefaultTenant(), Acks: []store.TxAck{
		{PartitionID: pid, Group: "b", Worker: "w", Hashes: hashes(1, 2, 3, 4), Statuses: statuses(ok, ok, ok, ok), Whole: true, End: 4},
		{PartitionID: pid, Group: "a", Worker: "w", Hashes: hashes(4), Statuses: statuses(ok)},
	}}
	res, err := b.store.Transaction(t.Context(), tx)
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Acked: 4, Released: true}, res.Acks[0])
	require.True(t, res.Acks[1].Released)
	require.Equal(t, finished(4, 14), b.state(pid, "b"))

	b.leased(pid, "c", "w", 0, 4)
	_, err = b.store.AckByHash(t.Context(), pid, "c", "w", hashes(1), statuses(ok))
	require.NoError(t, err)
	tx.Acks = tx.Acks[:1]
	tx.Acks[0].Group = "c"
	tx.Pushes = []store.TxPush{txPush("q", "p", 500)}
	_, err = b.store.Transaction(t.Context(), tx)
	var refused *store.TxRefused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, store.TxReasonAckRejected, refused.Reason)
	require.Contains(t, refused.Text, "batch partly committed")
	require.EqualValues(t, 1, b.state(pid, "c").Committed)
}

// An ack without a lease may name what its own transaction pushes.
func TestATransactionAcksWhatItPushes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.cursorAt(pid, "g", 7)
	_, err := b.store.Transaction(t.Context(), store.Transaction{
		Tenant: store.DefaultTenant(), Pushes: []store.TxPush{txPush("q", "p", 500)}, Acks: []store.TxAck{txAck(pid, "g", "", 500)},
	})
	require.NoError(t, err)
	require.EqualValues(t, 8, b.state(pid, "g").Committed)
}
