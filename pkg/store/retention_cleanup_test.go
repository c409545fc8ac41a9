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

const day = 24 * time.Hour

// dead is a lane that was emptied and then left alone for 40 days, with a group
// that has read it.
func (b *keepBench) dead(queue, name string) uuid.UUID {
	b.t.Helper()
	pid := b.fill(queue, name, 10, 41*day)
	b.step(pid, ago(day), nil, 10)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, created_at) VALUES ($1, 'g', 9, now() - interval '41 days')`, pid)
	b.exec(`UPDATE queen.log_partitions SET created_at = now() - interval '41 days', last_write_at = now() - interval '40 days' WHERE id = $1`, pid)
	return pid
}

func (b *keepBench) cleanup(after store.LaneKey, rows int) store.Cleanup {
	b.t.Helper()
	c, err := b.m.CleanupStep(b.t.Context(), *ago(30 * day), after, rows)
	require.NoError(b.t, err)
	return c
}

func (b *keepBench) exists(pid uuid.UUID) bool {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM queen.log_partitions WHERE id = $1`, pid) == 1
}

// What keeps an empty partition, and what does not; the window is 30 days.
func TestWhatVetoesACleanup(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		sql  string // $1 is the partition
		goes bool
	}{
		"nothing":                              {`SELECT $1::uuid`, true},
		"a segment":                            {`INSERT INTO queen.log_segments VALUES ($1, 10, 10, 'epoch', '1')`, false},
		"a dead letter":                        {`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") VALUES ($1, 'g', 0)`, false},
		"streams state":                        {`WITH q AS (INSERT INTO queen_streams.queries (name, source_queue, config_hash) VALUES ('n', 'q', '') RETURNING id) INSERT INTO queen_streams.state SELECT id, $1, 'k', '1' FROM q`, false},
		"a trace":                              {`INSERT INTO queen.message_traces (partition_id, transaction_id) VALUES ($1, 't')`, true},
		"written inside the window":            {`UPDATE queen.log_partitions SET last_write_at = now() - interval '29 days' WHERE id = $1`, false},
		"written just before it":               {`UPDATE queen.log_partitions SET last_write_at = now() - interval '31 days' WHERE id = $1`, true},
		"created inside the window":            {`UPDATE queen.log_partitions SET created_at = now() - interval '29 days' WHERE id = $1`, false},
		"created just before it":               {`UPDATE queen.log_partitions SET created_at = now() - interval '31 days' WHERE id = $1`, true},
		"a live lease":                         {`UPDATE queen.log_consumers SET batch_end = 9, lease_expires_at = now() + interval '1 minute' WHERE partition_id = $1`, false},
		"a lease without an end":               {`UPDATE queen.log_consumers SET batch_end = 9 WHERE partition_id = $1`, false},
		"a lease that expired long ago":        {`UPDATE queen.log_consumers SET batch_end = 9, lease_acquired_at = now() - interval '32 days', lease_expires_at = now() - interval '31 days' WHERE partition_id = $1`, true},
		"a lease that expired in the window":   {`UPDATE queen.log_consumers SET lease_expires_at = now() - interval '29 days' WHERE partition_id = $1`, false},
		"a lease taken inside the window":      {`UPDATE queen.log_consumers SET lease_acquired_at = now() - interval '29 days' WHERE partition_id = $1`, false},
		"a lease taken before it":              {`UPDATE queen.log_consumers SET lease_acquired_at = now() - interval '31 days' WHERE partition_id = $1`, true},
		"a group that came inside the window":  {`INSERT INTO queen.log_consumers (partition_id, consumer_group, created_at) VALUES ($1, 'h', now() - interval '29 days')`, false},
		"a group that came before it":          {`INSERT INTO queen.log_consumers (partition_id, consumer_group, created_at) VALUES ($1, 'h', now() - interval '31 days')`, true},
		"a group that only acks automatically": {`UPDATE queen.log_consumers SET total_consumed = 10, lease_acquired_at = NULL WHERE partition_id = $1`, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			pid := b.dead("q", "p")
			b.exec(tc.sql, pid)
			var dead *bool
			b.one([]any{&dead}, `SELECT queen.log_partition_dead_v1($1, now() - interval '30 days')`, pid)
			require.Equal(t, tc.goes, *dead)
			c := b.cleanup(store.LaneKey{}, 10)
			require.Equal(t, !tc.goes, b.exists(pid))
			require.Equal(t, tc.goes, c.Deleted == 1)
			require.True(t, c.Done)
		})
	}
	b := setupKeep(t)
	require.Equal(t, int64(1), b.count(`SELECT count(*) WHERE queen.log_partition_dead_v1(gen_random_uuid(), now()) IS NULL`), "one that does not exist")
}

// A partition goes with its cursors and its sidecar, which has no foreign key, and
// leaves a row of history; the one that a push creates anew starts at offset 0.
func TestACleanupLeavesNothingBehindButItsEvent(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid, other := b.dead("q", "p"), b.fill("q", "other", 10, time.Hour)
	b.exec(`INSERT INTO queen.message_traces (partition_id, transaction_id) VALUES ($1, 't')`, pid)
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, pid))
	require.Equal(t, int64(1), b.cleanup(store.LaneKey{}, 10).Deleted)
	for _, table := range []string{"log_txns", "log_consumers", "log_segments"} {
		require.Zero(t, b.count(`SELECT count(*) FROM queen.`+table+` WHERE partition_id = $1`, pid), table)
	}
	require.Equal(t, []string{"retention 10", "__partition_deleted__ 0"}, b.events(pid))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.message_traces WHERE partition_id = $1`, pid))
	require.True(t, b.exists(other))
	require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.queues`), "a queue is never removed")

	v := b.queued(fresh("q", "p", 1))
	require.NotEqual(t, pid, v.PartitionID)
	require.Zero(t, v.BaseOffset)
	require.Zero(t, b.wrong())
}

// Steps with a position look at a page each, however much is vetoed; a call without
// one, as the seeds have it, finds what there is.
func TestVetoedPartitionsCostAStepNoMoreThanAPage(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	var pids []uuid.UUID
	for i := range 5 {
		pids = append(pids, b.dead("q", fmt.Sprint("lane", i)))
		b.exec(`UPDATE queen.log_partitions SET last_write_at = now() - $2::int * interval '1 day' WHERE id = $1`, pids[i], 40-i/4)
	}
	vetoed, dead := pids[:4], pids[4] // four written at one instant come first
	b.exec(`INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset") SELECT unnest($1::uuid[]), 'g', 0`, vetoed)

	first := b.cleanup(store.LaneKey{}, 2)
	require.Equal(t, []any{int64(0), 2, false}, []any{first.Deleted, first.Examined, first.Done})
	second := b.cleanup(first.Last, 2)
	require.Equal(t, []any{int64(0), 2, false}, []any{second.Deleted, second.Examined, second.Done})
	require.True(t, b.exists(dead))
	b.undone(func(ctx context.Context, tx pgx.Tx) {
		var deleted int
		var done bool
		require.NoError(t, tx.QueryRow(ctx, `SELECT (r ->> 'deleted')::int, (r ->> 'done')::bool
			FROM queen.log_partition_cleanup_step_v1(now() - interval '30 days', 2) AS r`).Scan(&deleted, &done))
		require.Equal(t, 1, deleted)
		require.True(t, done, "fewer than asked for")
	})
	third := b.cleanup(second.Last, 2)
	require.Equal(t, []any{int64(1), 1, true}, []any{third.Deleted, third.Examined, third.Done})
	require.False(t, b.exists(dead))
	for _, pid := range vetoed {
		require.True(t, b.exists(pid))
	}
	require.Equal(t, store.Cleanup{Done: true}, b.cleanup(third.Last, 2), "behind the end")
}

// A batch is not larger than asked for, and done only when less was found.
func TestACleanupIsBounded(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	for i := range 5 {
		b.dead("q", fmt.Sprint("lane", i))
	}
	step := func(args string) (deleted int64, done bool) {
		b.one([]any{&deleted, &done}, `SELECT (r ->> 'deleted')::bigint, (r ->> 'done')::bool FROM queen.log_partition_cleanup_step_v1(`+args+`) AS r`)
		return deleted, done
	}
	for _, want := range []struct {
		args    string
		deleted int64
		done    bool
	}{
		{`NULL, 10`, 0, true},
		{`now() - interval '30 days', 0`, 1, false},
		{`now() - interval '30 days', 2`, 2, false},
		{`now() - interval '30 days', 2`, 2, false},
		{`now() - interval '30 days', 2`, 0, true},
	} {
		deleted, done := step(want.args)
		require.Equal(t, want.deleted, deleted, want.args)
		require.Equal(t, want.done, done, want.args)
	}
	b.dead("q", "last")
	deleted, done := step(`now() - interval '30 days'`)
	require.Equal(t, int64(1), deleted, "a thousand without a number")
	require.True(t, done)
}

// A sidecar may be kept longer than partitions are: 20,000 rows go with one step,
// and a partition that has more of them stays for the next.
func TestACleanupDeletesALongSidecarInSteps(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	for name, tc := range map[string]struct{ rows, deleted int64 }{"as many as a step deletes": {rows, 1}, "one more": {rows + 1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			pid := b.dead("q", "p")
			b.exec(`DELETE FROM queen.log_txns`)
			b.exec(`INSERT INTO queen.log_txns SELECT $1, g, g, now() - interval '40 days', '1' FROM generate_series(1, $2::bigint) AS g`, pid, tc.rows)
			b.exec(`UPDATE queen.log_partitions SET last_offset = $2::bigint, log_start = $2::bigint + 1, oldest_txn_at = now() - interval '40 days' WHERE id = $1`, pid, tc.rows)
			require.Equal(t, tc.deleted, b.cleanup(store.LaneKey{}, 10).Deleted)
			require.Equal(t, tc.rows-rows, b.count(`SELECT count(*) FROM queen.log_txns`))
			require.Zero(t, b.wrong())
			require.Equal(t, 1-tc.deleted, b.cleanup(store.LaneKey{}, 10).Deleted)
			require.False(t, b.exists(pid))
		})
	}
}
