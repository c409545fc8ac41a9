package store_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// The batch is 1 to 4, behind a cursor at 0; 5 to 7 are stored and not leased.
func TestAckByHashDecides(t *testing.T) {
	t.Parallel()
	const noLetters = `{"retryLimit":1,"deadLetterQueue":false,"dlqAfterMaxRetries":false}`
	cases := map[string]struct {
		options  string
		ids      []uint64
		statuses []store.AckStatus
		want     store.AckOutcome
		row      ackState
	}{
		"all completed releases and resets": {``, []uint64{1, 2, 3, 4}, statuses(ok, ok, ok, ok),
			store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true}, finished(4, 14)},
		"no statuses are all completed": {``, []uint64{4}, nil,
			store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true}, finished(4, 14)},
		"the last alone completes what is below": {``, []uint64{4}, statuses(ok),
			store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true}, finished(4, 14)},
		"a part keeps the lease": {``, []uint64{2}, statuses(ok),
			store.AckOutcome{OK: true, Acked: 2, Offset: 2}, held(2, 12, 1)},
		"order does not matter": {``, []uint64{3, 1, 2}, statuses(ok, ok, ok),
			store.AckOutcome{OK: true, Acked: 3, Offset: 3}, held(3, 13, 1)},
		"other words for completed": {``, []uint64{1, 2, 3, 4}, statuses("success", "acked", "ok", ""),
			store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true}, finished(4, 14)},
		"an unknown word contributes nothing": {``, []uint64{2, 3}, statuses(ok, "Completed"),
			store.AckOutcome{OK: true, Acked: 2, Offset: 2}, held(2, 12, 1)},
		"nothing at all": {``, nil, nil,
			store.AckOutcome{OK: true, Offset: 0}, held(0, 10, 1)},

		"retry releases and charges nothing": {``, []uint64{1, 2}, statuses(ok, retry),
			store.AckOutcome{OK: true, Acked: 1, Offset: 1, Released: true}, free(1, 11, 1)},
		"retry never exhausts": {`{"retryLimit":0}`, []uint64{1}, statuses(retry),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 1)},
		"failed with budget charges once": {`{"retryLimit":2}`, []uint64{1, 2, 3}, statuses(failed, failed, failed),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 2)},
		"failed advances over the prefix": {``, []uint64{1, 2, 3, 4}, statuses(ok, ok, failed, ok),
			store.AckOutcome{OK: true, Acked: 2, Offset: 2, Released: true}, free(2, 12, 2)},
		"failed with the budget spent hands off": {`{"retryLimit":1}`, []uint64{1, 2}, statuses(ok, failed),
			store.AckOutcome{OK: true, Acked: 1, Offset: 2, DLQ: true, Worker: "w"}, held(1, 11, 1)},
		"a lowered limit makes the next one terminal": {`{"retryLimit":0}`, []uint64{1}, statuses(failed),
			store.AckOutcome{OK: true, Offset: 1, DLQ: true, Worker: "w"}, held(0, 10, 1)},
		"either flag switches letters on": {`{"retryLimit":1,"deadLetterQueue":false}`, []uint64{1}, statuses(failed),
			store.AckOutcome{OK: true, Offset: 1, DLQ: true, Worker: "w"}, held(0, 10, 1)},
		"the other flag too": {`{"retryLimit":1,"dlqAfterMaxRetries":false}`, []uint64{1}, statuses(failed),
			store.AckOutcome{OK: true, Offset: 1, DLQ: true, Worker: "w"}, held(0, 10, 1)},
		"without letters it is dropped": {noLetters, []uint64{1, 2, 3}, statuses(ok, ok, failed),
			store.AckOutcome{OK: true, Acked: 2, Offset: 3, Dropped: true, Released: true}, free(3, 13, 0)},
		"without letters a budget is still a budget": {`{"retryLimit":2,"deadLetterQueue":false,"dlqAfterMaxRetries":false}`, []uint64{1}, statuses(failed),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 2)},
		"dlq ignores the budget": {`{"retryLimit":9}`, []uint64{1, 3}, statuses(ok, dlq),
			store.AckOutcome{OK: true, Acked: 1, Offset: 3, DLQ: true, Worker: "w"}, held(1, 11, 1)},
		"dlq ignores the flags": {noLetters, []uint64{1}, statuses(dlq),
			store.AckOutcome{OK: true, Offset: 1, DLQ: true, Worker: "w"}, held(0, 10, 1)},
		"the lowest signal decides": {``, []uint64{4, 3, 2}, statuses(dlq, failed, retry),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 1)},
		"completed above the signal is not committed": {``, []uint64{4, 2}, statuses(ok, retry),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 1)},
		"completed at the signal is not committed": {``, []uint64{2, 2}, statuses(ok, retry),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 1)},
		"dlq before failed at one offset": {``, []uint64{2, 2, 2}, statuses(retry, failed, dlq),
			store.AckOutcome{OK: true, Offset: 2, DLQ: true, Worker: "w"}, held(0, 10, 1)},
		"failed before retry at one offset": {``, []uint64{2, 2}, statuses(retry, failed),
			store.AckOutcome{OK: true, Offset: 0, Released: true}, free(0, 10, 2)},

		"below the cursor is noop or stale": {``, []uint64{0, 0, 0, 0, 2}, statuses(failed, ok, dlq, ok, ok),
			store.AckOutcome{OK: true, Acked: 2, Offset: 2, Noop: []int{1, 3}, Stale: []int{0, 2}}, held(2, 12, 1)},
		"only below the cursor keeps the lease": {``, []uint64{0}, statuses(retry),
			store.AckOutcome{OK: true, Stale: []int{0}}, held(0, 10, 1)},
		"above the batch resolves nowhere": {``, []uint64{5, 7, 4}, statuses(ok, failed, ok),
			store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true, Unresolved: []int{0, 1}}, finished(4, 14)},
		"never pushed resolves nowhere": {``, []uint64{99, 1, 99}, statuses(dlq, ok, ok),
			store.AckOutcome{OK: true, Acked: 1, Offset: 1, Unresolved: []int{0, 2}}, held(1, 11, 1)},
		"a ghost's nack charges nothing": {``, []uint64{99}, statuses(failed),
			store.AckOutcome{OK: true, Unresolved: []int{0}}, held(0, 10, 1)},
	}
	shared := setup(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := shared.in(t)
			pid := b.laneOf(name)
			if c.options != "" {
				b.configure(name, c.options, true)
			}
			b.leased(pid, group, "w", 0, 4)
			got, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(c.ids...), c.statuses)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.row, b.state(pid, group))
		})
	}
}

func TestRetryBudgetIsChargedBelowTheLimit(t *testing.T) {
	t.Parallel()
	for limit, name := range map[int]string{0: `{"retryLimit":0}`, 1: `{"retryLimit":1}`, 3: `{}`} {
		b := setup(t)
		pid := b.lane()
		b.configure("q", name, true)
		for spent := range limit + 1 {
			b.exec(`DELETE FROM queen.log_consumers`)
			b.leased(pid, group, "w", 0, 4)
			b.exec(`UPDATE queen.log_consumers SET batch_retry_count = $1`, spent)
			out, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(1), statuses(failed))
			require.NoError(t, err)
			require.Equal(t, spent == limit, out.DLQ, "limit %d, %d spent", limit, spent)
			require.Equal(t, spent < limit, out.Released)
			require.Equal(t, min(spent+1, limit), b.state(pid, group).Retries)
		}
	}
}

func TestAckByHashRefuses(t *testing.T) {
	t.Parallel()
	const lost = "invalid or expired lease"
	cases := map[string]struct {
		prepare       func(b *bench, pid uuid.UUID)
		group, worker string
		want          string
	}{
		"a group without a cursor": {nil, "other", "", "consumer not found"},
		"another worker":           {nil, group, "x", lost},
		"an expired lease":         {func(b *bench, pid uuid.UUID) { b.expireLease(pid, group) }, group, "w", lost},
		"a lease without an expiry": {func(b *bench, _ uuid.UUID) {
			b.exec(`UPDATE queen.log_consumers SET lease_expires_at = NULL`)
		}, group, "w", lost},
		"a lease given back": {func(b *bench, _ uuid.UUID) {
			b.exec(`UPDATE queen.log_consumers SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL`)
		}, group, "w", lost},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			pid := b.lane()
			b.leased(pid, group, "w", 0, 4)
			if c.prepare != nil {
				c.prepare(b, pid)
			}
			before := b.state(pid, group)
			out, err := b.store.AckByHash(t.Context(), pid, c.group, c.worker, hashes(4), statuses(ok))
			require.NoError(t, err)
			require.Equal(t, store.AckOutcome{Error: c.want}, out)
			out, err = b.store.AckAt(t.Context(), pid, c.group, c.worker, 4, true, 4)
			require.NoError(t, err)
			require.Equal(t, store.AckOutcome{Error: c.want}, out)
			require.Equal(t, before, b.state(pid, group))
		})
	}
}

func TestAckByHashRefusesMisalignedArrays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	_, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(1, 2), statuses(ok))
	require.ErrorContains(t, err, "QACK misaligned arrays")
	require.Equal(t, store.Permanent, store.Classify(err))
}

func TestAckWithoutALease(t *testing.T) {
	t.Parallel()
	t.Run("of a batch that another holds acts on it", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		pid := b.lane()
		b.leased(pid, group, "w", 0, 4)
		out, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(5, 4), statuses(ok, ok))
		require.NoError(t, err)
		require.Equal(t, store.AckOutcome{OK: true, Acked: 4, Offset: 4, Released: true, Unresolved: []int{0}}, out)
		require.Equal(t, finished(4, 14), b.state(pid, group))
	})
	t.Run("of a batch whose lease has expired", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		pid := b.lane()
		b.leased(pid, group, "w", 0, 4)
		b.expireLease(pid, group)
		out, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(4), statuses(ok))
		require.NoError(t, err)
		require.True(t, out.Released)
		require.Equal(t, finished(4, 14), b.state(pid, group))
	})
	t.Run("without a batch is not bounded above, and signals only stop the cursor", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		pid := b.lane()
		b.cursorAt(pid, group, 0)
		for _, status := range []store.AckStatus{failed, dlq, retry} {
			out, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(7, 3, 2), statuses(ok, status, ok))
			require.NoError(t, err)
			require.Equal(t, int64(2), out.Offset)
			require.Equal(t, []bool{true, false, false, false}, []bool{out.OK, out.Released, out.DLQ, out.Dropped})
		}
		out, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(7), statuses(ok))
		require.NoError(t, err)
		require.Equal(t, store.AckOutcome{OK: true, Acked: 5, Offset: 7}, out)
		require.Equal(t, finished(7, 7), b.state(pid, group))
	})
	t.Run("hands a dead letter off under the holder, whose lease lasts that long", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		pid := b.lane()
		b.leased(pid, group, "w", 0, 4)
		b.expireLease(pid, group)
		out, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(1), statuses(dlq))
		require.NoError(t, err)
		require.Equal(t, store.AckOutcome{OK: true, Offset: 1, DLQ: true, Worker: "w"}, out)
		filed, err := b.store.DLQHead(t.Context(), store.DeadLetter{
			PartitionID: pid, Group: group, Worker: out.Worker, Offset: out.Offset, Payload: []byte(`1`),
		})
		require.NoError(t, err)
		require.True(t, filed.OK, filed.Error)
	})
}

// Offsets below txns_start count as purged, also while the rows are still there.
func TestAckWindowStartsAtThePurgeMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.lane()
	b.leased(pid, group, "w", 0, 4)
	b.exec(`UPDATE queen.log_partitions SET txns_start = 3`)
	out, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(1, 2, 0, 3), statuses(ok, dlq, ok, ok))
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Acked: 3, Offset: 3, Noop: []int{2}, Unresolved: []int{0, 1}}, out)
	b.exec(`DELETE FROM queen.log_txns`)
	out, err = b.store.AckByHash(t.Context(), pid, group, "w", hashes(0, 4), statuses(ok, ok))
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Offset: 3, Unresolved: []int{0, 1}}, out)
	require.Equal(t, held(3, 13, 1), b.state(pid, group))
}

func TestAckOfARepeatedIDResolvesToItsFirstCopyInTheBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"dedupWindowSeconds":0}`, true)
	pid := b.queued(segment("q", "p", 50, 51)).PartitionID // 0, 1
	b.queued(segment("q", "p", 50, 50, 52))                // 2, 3, 4
	b.queued(segment("q", "p", 50))                        // 5
	b.leased(pid, group, "w", 0, 4)
	out, err := b.store.AckByHash(t.Context(), pid, group, "w", hashes(50), statuses(ok))
	require.NoError(t, err)
	require.Equal(t, store.AckOutcome{OK: true, Acked: 2, Offset: 2}, out, "not the copy below the cursor, nor a later one")
	out, err = b.store.AckByHash(t.Context(), pid, group, "w", hashes(50, 52), statuses(dlq, ok))
	require.NoError(t, err)
	require.Equal(t, int64(3), out.Offset)
	require.True(t, out.DLQ)
}

// A lease-less ack walks the sidecar in pages, upwards and downwards.
func TestAckFindsIDsManyPagesAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 0)).PartitionID
	b.exec(`INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
		SELECT $1, g * 2 - 1, g * 2, now(), decode(md5('x' || g) || lpad(to_hex(g), 32, '0'), 'hex') FROM generate_series(1, 3000) AS g`, pid)
	b.exec(`UPDATE queen.log_partitions SET last_offset = 6000`)
	b.cursorAt(pid, group, -1)
	ack := func(ids ...uint64) store.AckOutcome {
		out, err := b.store.AckByHash(t.Context(), pid, group, "", hashes(ids...), nil)
		require.NoError(t, err)
		return out
	}
	require.Equal(t, store.AckOutcome{OK: true, Acked: 1001, Offset: 1000, Unresolved: []int{1}}, ack(500, 1<<40, 2))
	require.Equal(t, store.AckOutcome{OK: true, Acked: 5000, Offset: 6000, Noop: []int{0}}, ack(1, 3000))
	require.Equal(t, store.AckOutcome{OK: true, Offset: 6000, Noop: []int{0, 1, 3}, Unresolved: []int{2}}, ack(3000, 1, 1<<40, 1500))
	require.Equal(t, ackState{Committed: 6000, Consumed: 6001}, b.state(pid, group))
}

// A thousand hashes over many segments are one hash join over the batch, also
// with the plan that was made while the lane held one row.
func TestAckOfABigBatchIsOneHashJoin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 0)).PartitionID
	b.cursorAt(pid, group, -1)
	ack := func(upto int, ids ...uint64) func(context.Context, *pgx.Conn) error {
		return func(ctx context.Context, conn *pgx.Conn) error {
			blobs := make([][]byte, len(ids))
			for i, id := range ids {
				blobs[i] = hash(id)
			}
			_, err := conn.Exec(ctx, `UPDATE queen.log_consumers SET batch_end = $1`, upto)
			if err == nil {
				_, err = conn.Exec(ctx, `SELECT queen.log_ack_by_hash_v1($1, $2, '', $3, NULL)`, pid, group, blobs)
			}
			return err
		}
	}
	var ids []uint64
	for id := range uint64(1000) {
		ids = append(ids, 1+id*3)
	}
	plans := plansOf(t, b, ack(0, 0), func(ctx context.Context, conn *pgx.Conn) error {
		b.exec(`INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
			SELECT $1, g * 3 - 2, g * 3, now(), decode(lpad(to_hex(g * 3 - 2), 32, '0') || lpad(to_hex(g * 3 - 1), 32, '0') || lpad(to_hex(g * 3), 32, '0'), 'hex')
			FROM generate_series(1, 2000) AS g`, pid)
		return ack(3000, ids...)(ctx, conn)
	})
	match := planWith(t, plans[1], "min(e.off)")
	for _, slow := range []string{"Merge Join", "Memoize", "Seq Scan", "JIT"} {
		require.NotContains(t, match, slow)
	}
	require.Regexp(t, `Hash Join .*actual rows=1000 loops=1`, match)
	require.Regexp(t, `on log_txns t .*actual rows=1000 loops=1`, match, "the batch is read once, and nothing above it")
	require.Equal(t, int64(2998), b.state(pid, group).Committed)
}
