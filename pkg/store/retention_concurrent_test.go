package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// patient lets the session of a test wait for locks as long as the test does.
func (b *keepBench) patient() {
	b.t.Helper()
	require.NoError(b.t, b.m.Run(b.t.Context(), `SET lock_timeout = 0; SET statement_timeout = 0`))
}

// A lane that somebody holds costs the leader a second and neither its session nor
// its lock.
func TestAStepGivesUpOnALaneThatIsHeld(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, time.Hour)
	b.holding(pid, func(ctx context.Context, _ pgx.Tx) {
		_, err := b.m.RetentionStep(ctx, pid, ago(0), nil, 10)
		require.True(t, store.Locked(err), "%v", err)
		_, err = b.m.TxnsStep(ctx, pid, time.Now(), 10)
		require.True(t, store.Locked(err), "%v", err)
		got, err := b.session().TryLock(ctx)
		require.NoError(t, err)
		require.False(t, got)
	})
	require.Equal(t, []int64{0}, b.bases(pid))
	require.Equal(t, int64(1), b.step(pid, ago(0), nil, 10).Deleted)
}

// A leader that has met one lane that is held may wait less for the others.
func TestTheWaitForALaneCanBeShortened(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, time.Hour)
	require.NoError(t, b.m.SetLockWait(t.Context(), 20*time.Millisecond))
	b.holding(pid, func(ctx context.Context, _ pgx.Tx) {
		_, err := b.m.RetentionStep(ctx, pid, ago(0), nil, 10)
		require.True(t, store.Locked(err), "%v", err)
	})
	for wait, want := range map[time.Duration]string{
		20 * time.Millisecond: "20ms", store.StepLockWait: "1s", time.Nanosecond: "1ms", // 0 would be no limit
	} {
		require.NoError(t, b.m.SetLockWait(t.Context(), wait))
		got, err := b.m.Setting(t.Context(), "lock_timeout")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, b.m.SetLockWait(t.Context(), 20*time.Millisecond))
	require.NoError(t, b.m.Unlock(t.Context()))
	_, err := b.m.TryLock(t.Context())
	require.NoError(t, err)
	got, err := b.m.Setting(t.Context(), "lock_timeout")
	require.NoError(t, err)
	require.Equal(t, "1s", got)
}

// A step that waited for a push knows what the push has written.
func TestAStepThatWaitedForAPush(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.patient()
	pid := b.fill("q", "p", 10, time.Hour)
	steps := make(chan error, 1)
	b.inTx(func(ctx context.Context, tx pgx.Tx) {
		require.NoError(t, pushIn(ctx, tx, []store.PushSegment{fresh("q", "p", 5)}))
		go func() {
			_, err := b.m.RetentionStep(t.Context(), pid, ago(time.Minute), nil, 10)
			steps <- err
		}()
		require.NoError(t, waitUntilBlocked(ctx, tx, 1))
	})
	require.NoError(t, <-steps)
	require.Equal(t, []int64{10}, b.bases(pid))
	require.Zero(t, b.wrong())
}

// A push that waited for the step that emptied its lane sets the watermark anew.
func TestAPushThatWaitedForAStep(t *testing.T) {
	t.Parallel()
	for name, segs := range pushes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			b.push(segs("q")...)
			pushed := make(chan error, 1)
			b.inTx(func(ctx context.Context, tx pgx.Tx) {
				_, err := tx.Exec(ctx, `SELECT queen.log_retention_step_v1(id, 'infinity', NULL, 10), queen.log_txns_purge_step_v1(id, 'infinity', 10)
					FROM queen.log_partitions`)
				require.NoError(t, err)
				go func() {
					_, err := b.store.PushMulti(t.Context(), segs("q"))
					pushed <- err
				}()
				require.NoError(t, waitUntilBlocked(ctx, tx, 1))
			})
			require.NoError(t, <-pushed)
			require.Zero(t, b.wrong())
			require.Zero(t, b.count(`SELECT count(*) FROM queen.log_partitions WHERE oldest_live_at IS NULL`))
		})
	}
}

// The cleanup waits for nobody: a partition is passed by while a push, a first
// contact or a reader is at it.
func TestACleanupPassesByWhatIsHeld(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.dead("q", "p")
	for i, lock := range []string{
		`SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`,
		`SELECT FROM queen.log_partitions WHERE id = $1 FOR KEY SHARE`,
		`SELECT FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`,
	} {
		free := b.dead("q", fmt.Sprint("free", i))
		b.inTx(func(ctx context.Context, tx pgx.Tx) {
			_, err := tx.Exec(ctx, lock, pid)
			require.NoError(t, err)
			c := b.cleanup(store.LaneKey{}, 10)
			require.Equal(t, int64(1), c.Deleted, lock)
			require.Equal(t, 2, c.Examined)
		})
		require.True(t, b.exists(pid), lock)
		require.False(t, b.exists(free), lock)
	}
	require.Equal(t, int64(1), b.cleanup(store.LaneKey{}, 10).Deleted)
}

// The predicate is asked a second time under the locks, and that answer counts.
func TestTheCleanupDecidesUnderItsLocks(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.dead("q", "p")
	b.exec(`CREATE SEQUENCE public.asked`)
	b.exec(`CREATE OR REPLACE FUNCTION queen.log_partition_dead_v1(p_pid UUID, p_cutoff TIMESTAMPTZ) RETURNS BOOLEAN LANGUAGE sql
		AS $$ SELECT nextval('public.asked') = 1 $$`)
	require.Zero(t, b.cleanup(store.LaneKey{}, 10).Deleted)
	require.True(t, b.exists(pid))
	require.Equal(t, int64(2), b.count(`SELECT last_value FROM public.asked`))
}

// A push that had looked the id up before the cleanup writes nothing, says so, and
// makes the partition anew with its next attempt: at once where the caller had named
// the id.
func TestAPushThatRacesACleanup(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"by name": false, "by id": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			pid := b.dead("q", "p")
			seg := fresh("q", "p", 1)
			if known {
				seg.PartitionID = pid
			}
			pushed := make(chan error, 1)
			b.inTx(func(ctx context.Context, tx pgx.Tx) {
				_, err := tx.Exec(ctx, `SELECT queen.log_partition_cleanup_step_v1(now() - interval '30 days', 10)`)
				require.NoError(t, err)
				go func() {
					_, err := b.store.PushMulti(t.Context(), []store.PushSegment{seg})
					pushed <- err
				}()
				require.NoError(t, waitUntilBlocked(ctx, tx, 1))
			})
			if err := <-pushed; !known {
				require.True(t, aborted(err), "%v", err)
				require.Zero(t, b.count(`SELECT count(*) FROM queen.log_segments`))
				b.queued(seg)
			}
			require.Equal(t, int64(1), b.count(`SELECT count(*) FROM queen.log_segments WHERE partition_id <> $1 AND base_offset = 0`, pid))
			require.Zero(t, b.wrong())
		})
	}
}

// Everything at once on lanes that come and go: no deadlock, no lost write, and all
// marks true in the end. The cleanup takes partitions as soon as they are empty.
func TestMaintenanceAmongTraffic(t *testing.T) {
	t.Parallel()
	const lanes, rounds = 12, 80
	b := setupKeep(t)
	b.patient()
	var pushed atomic.Int64
	var group errgroup.Group
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var traffic errgroup.Group
	for range 3 {
		traffic.Go(func() error {
			for range rounds {
				var segs []store.PushSegment
				for _, lane := range rand.Perm(lanes)[:1+rand.IntN(3)] {
					segs = append(segs, fresh("q", fmt.Sprint("lane", lane), 1+rand.IntN(3)))
				}
				if err := pushUntilStored(t.Context(), b.store, segs); err != nil {
					return err
				}
				for _, s := range segs {
					pushed.Add(int64(s.Count))
				}
			}
			return nil
		})
	}
	traffic.Go(func() error {
		for range rounds {
			if err := pushUntilStored(t.Context(), b.store, []store.PushSegment{fresh("doomed", "p", 1), fresh("doomed", "p2", 1)}); err != nil {
				return err
			}
			if _, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "doomed"); err != nil {
				return fmt.Errorf("delete: %w", err)
			}
		}
		return nil
	})
	traffic.Go(func() error {
		for i := range rounds {
			p := popArgs(fmt.Sprintf("g%d", i%3), 100)
			p.AutoAck, p.MaxPartitions = true, lanes
			if _, err := b.store.PopWildcard(t.Context(), "q", p); err != nil && !aborted(err) {
				return fmt.Errorf("pop: %w", err)
			}
		}
		return nil
	})
	for range 2 {
		m := b.session()
		group.Go(func() error { return keepHouse(ctx, b.bench, m) })
	}
	err := traffic.Wait()
	stop()
	require.NoError(t, group.Wait())
	require.NoError(t, err)

	require.Zero(t, b.wrong())
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_txns AS t WHERE NOT EXISTS (SELECT 1 FROM queen.log_partitions AS p WHERE p.id = t.partition_id)`))
	var stored, gone int64
	b.one([]any{&stored}, `SELECT coalesce(sum(end_offset - base_offset + 1), 0) FROM queen.log_segments`)
	b.one([]any{&gone}, `SELECT coalesce(sum(h.messages_deleted), 0) FROM queen.retention_history AS h WHERE h.retention_type = 'retention'`)
	require.Equal(t, pushed.Load(), stored+gone, "each message is stored, or in the history")
	require.NotZero(t, b.count(`SELECT count(*) FROM queen.retention_history WHERE retention_type = '__partition_deleted__'`))
}

// pushUntilStored repeats what failed without being stored.
func pushUntilStored(ctx context.Context, s *store.Store, segs []store.PushSegment) error {
	for {
		_, err := s.PushMulti(ctx, segs)
		if err == nil {
			return nil
		}
		if !aborted(err) {
			return fmt.Errorf("push: %w", err)
		}
	}
}

// aborted tells that a call did nothing and may be made again. A deadlock would be
// that too, but is a broken lock order.
func aborted(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code != "40P01" && store.Classify(err) == store.Transient && !store.Ambiguous(err)
}

// keepHouse makes every kind of step, on all lanes of queue q, until ctx ends.
func keepHouse(ctx context.Context, b *bench, m *store.MaintenanceSession) error {
	// The steps themselves are not cut off: a lost answer would be a failure.
	work := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		var lanes []uuid.UUID
		err := b.db.Do(work, "test", func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT coalesce(array_agg(p.id), '{}') FROM queen.log_partitions AS p
				JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = 'q'`).Scan(&lanes)
		})
		if err != nil {
			return err
		}
		now := time.Now().Add(-time.Millisecond)
		for _, pid := range lanes {
			if _, err := m.RetentionStep(work, pid, &now, nil, 1+rand.IntN(20)); err != nil {
				return err
			}
			if _, err := m.TxnsStep(work, pid, now, 1+rand.IntN(20)); err != nil {
				return err
			}
		}
		if _, err := m.CleanupStep(work, now, store.LaneKey{}, 10); err != nil {
			return err
		}
		if _, err := m.WalkStep(work, uuid.Nil, 100, true); err != nil {
			return err
		}
	}
	return nil
}
