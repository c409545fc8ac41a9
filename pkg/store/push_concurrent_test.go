package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// Overlapping bundles in random lane order, the lanes themselves being created
// by whoever comes first: no deadlock, and every lane a sequence without holes.
func TestConcurrentBundlesKeepEveryLaneInOrder(t *testing.T) {
	t.Parallel()
	const pushers, lanes, rounds = 16, 8, 25
	b := setup(t)
	var group errgroup.Group
	for range pushers {
		group.Go(func() error {
			for range rounds {
				var bundle []store.PushSegment
				for _, lane := range rand.Perm(lanes)[:1+rand.IntN(lanes)] {
					// Lanes over two queues: provisioning orders both kinds.
					bundle = append(bundle, fresh(fmt.Sprintf("q%d", lane%2), fmt.Sprintf("p%d", lane), 1+rand.IntN(5)))
				}
				if _, err := b.store.PushMulti(t.Context(), bundle); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait(), "40P01 here is a broken lock order")

	require.EqualValues(t, 2, b.count(`SELECT count(*) FROM queen.queues`))
	require.EqualValues(t, lanes, b.count(`SELECT count(*) FROM queen.log_partitions`))
	for _, table := range []string{"log_segments", "log_txns"} {
		require.Zero(t, b.count(`SELECT count(*) FROM (
			SELECT base_offset, created_at,
				lag(end_offset, 1, -1::bigint) OVER lane AS before, lag(created_at, 1, '-infinity') OVER lane AS earlier
			FROM queen.`+table+` WINDOW lane AS (PARTITION BY partition_id ORDER BY base_offset)) s
			WHERE base_offset <> before + 1 OR created_at < earlier`), "contiguous ranges and monotone stamps in %s", table)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions p
		WHERE last_offset <> (SELECT max(end_offset) FROM queen.log_segments s WHERE s.partition_id = p.id)`))
}

// Provisioning inserts in the order of the unique keys, whatever the order of
// the call: a session that waits for the first key holds none of the later ones.
func TestProvisioningHoldsNothingBeyondWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	const backwards = `SELECT array_agg(n ORDER BY n DESC) FROM (SELECT chr(g) AS n FROM generate_series(65, 90) AS g) AS x`
	cases := map[string]string{ // $1 is the list of names
		"queues":     `SELECT queen.log_provision_v1(array_fill('00000000-0000-0000-0000-000000000001'::uuid, ARRAY[cardinality($1::text[])]), $1, '{}')`,
		"partitions": `SELECT queen.log_provision_v1(array_fill('00000000-0000-0000-0000-000000000001'::uuid, ARRAY[cardinality($1::text[])]), array_fill('q'::text, ARRAY[cardinality($1::text[])]), $1)`,
	}
	for name, call := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.configure("q", `{}`, false)
			var names []string
			b.one([]any{&names}, backwards)
			waiter := make(chan error, 1)
			require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
				return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, call, names[len(names)-1:]); err != nil {
						return err
					}
					go func() {
						waiter <- b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
							_, err := conn.Exec(ctx, call, names)
							return err
						})
					}()
					if err := waitUntilBlocked(ctx, tx, 1); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, call, names) // deadlocks when the waiter holds one of them
					return err
				})
			}))
			require.NoError(t, <-waiter)
		})
	}
}

// Many pushers race with the same id on a cold lane: one of them stores it.
func TestConcurrentTwinsAreStoredOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id := range uint64(20) {
		stored := make(chan bool, 8)
		var group errgroup.Group
		for range cap(stored) {
			group.Go(func() error {
				v, err := b.store.PushMulti(t.Context(), []store.PushSegment{segment("q", "p", id)})
				if err == nil {
					stored <- v[0].Status == store.PushQueued
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		close(stored)
		winners := 0
		for won := range stored {
			if won {
				winners++
			}
		}
		require.Equal(t, 1, winners, "id %d", id)
	}
	require.EqualValues(t, 20, b.count(`SELECT count(*) FROM queen.log_segments`))
}

// A pusher waits for the lane while its queue is being deleted.
func TestPushThatWaitsForADeletedLaneWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	pushed := make(chan error, 1)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT queen.delete_queue_v1('q')`); err != nil {
				return err
			}
			go func() {
				_, err := b.store.PushMulti(t.Context(), []store.PushSegment{segment("q", "p", 2)})
				pushed <- err
			}()
			return waitUntilBlocked(ctx, tx, 1)
		})
	}))
	err := <-pushed
	require.Equal(t, store.Transient, store.Classify(err), "%v", err)
	require.False(t, store.Ambiguous(err))
	for _, table := range []string{"queues", "log_partitions", "log_segments", "log_txns"} {
		require.Zero(t, b.count(`SELECT count(*) FROM queen.`+table), table)
	}
	require.Zero(t, b.queued(segment("q", "p", 2)).BaseOffset, "a second attempt creates the queue anew")
}

// waitUntilBlocked returns when n sessions of this database wait for a lock
// that tx's session holds.
func waitUntilBlocked(ctx context.Context, tx pgx.Tx, n int) error {
	for {
		var blocked int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pg_backend_pid() = ANY (pg_blocking_pids(pid))`).Scan(&blocked); err != nil {
			return err
		}
		if blocked >= n {
			return nil
		}
		if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.002)`); err != nil {
			return err
		}
		// The activity view is a snapshot per transaction.
		if _, err := tx.Exec(ctx, `SELECT pg_stat_clear_snapshot()`); err != nil {
			return err
		}
	}
}

// Pushers and deleters of one queue at full speed. Every push either landed and
// was deleted with its queue, or created it anew; nothing is left without an owner.
func TestDeletionRacesPush(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var pushers, deleters errgroup.Group
	done := make(chan struct{})
	for range 6 {
		pushers.Go(func() error {
			for range 60 {
				for {
					_, err := b.store.PushMulti(ctx, []store.PushSegment{fresh("q", "a", 2), fresh("q", "b", 1), fresh("r", "a", 1)})
					if err == nil {
						break
					}
					if store.Classify(err) != store.Transient || store.Ambiguous(err) {
						return err
					}
				}
			}
			return nil
		})
	}
	var deleted int
	deleters.Go(func() error {
		for {
			select {
			case <-done:
				return nil
			default:
			}
			doc, err := b.store.DeleteQueue(ctx, store.DefaultTenant(), "q")
			if err != nil {
				return err
			}
			if object(t, doc)["deleted"] == true {
				deleted++
			}
		}
	})
	err := pushers.Wait()
	close(done)
	require.NoError(t, errors.Join(err, deleters.Wait()))
	require.Positive(t, deleted)

	b.assertNoOrphans()
	require.EqualValues(t, 360, b.count(`SELECT count(*) FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id
		JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'r'`), "the neighbour queue lost nothing and gained nothing twice")
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions p
		WHERE last_offset <> (SELECT COALESCE(max(end_offset), -1) FROM queen.log_segments s WHERE s.partition_id = p.id)`))
}

// assertNoOrphans checks the tables that no foreign key ties to a lane.
func (b *bench) assertNoOrphans() {
	b.t.Helper()
	for _, table := range []string{"log_txns", "log_dlq"} {
		require.Zero(b.t, b.count(`SELECT count(*) FROM queen.`+table+` t
			WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions p WHERE p.id = t.partition_id)`), "rows of %s without a lane", table)
	}
	require.Zero(b.t, b.count(`SELECT count(*) FROM queen.log_segments s FULL JOIN queen.log_txns t
		ON t.partition_id = s.partition_id AND t.base_offset = s.base_offset
		WHERE s.end_offset IS DISTINCT FROM t.end_offset OR s.created_at IS DISTINCT FROM t.created_at`))
}

// A first-contact cursor and a push hold the lane at once: neither waits.
func TestLaneLockLeavesKeyShareAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pid := b.queued(segment("q", "p", 1)).PartitionID
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT queen.log_push_one_v1('q', 'p', 1, $1, -1, 'x')`, hash(2)); err != nil {
				return err
			}
			return insertCursor(ctx, b, pid, "g")
		})
	}))
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO queen.log_consumers (partition_id, consumer_group) VALUES ($1, 'h')`, pid); err != nil {
				return err
			}
			b.queued(segment("q", "p", 3))
			return nil
		})
	}))
}

func insertCursor(ctx context.Context, b *bench, pid uuid.UUID, group string) error {
	return b.db.Do(ctx, "test", func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `SET lock_timeout = '5s'`); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, `INSERT INTO queen.log_consumers (partition_id, consumer_group) VALUES ($1, $2)`, pid, group); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `RESET lock_timeout`)
		return err
	})
}
