package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

// meanwhile runs fn while another transaction has run statement and is still open.
func (b *bench) meanwhile(statement string, fn func(), args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, statement, args...); err != nil {
				return err
			}
			fn()
			return nil
		})
	}))
}

func TestOnlyOneReplicaRefreshes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	b.meanwhile(`SELECT pg_advisory_xact_lock(737002)`, func() {
		turn, sum, err := b.store.RefreshStats(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, store.StatsTurn{State: store.StatsBusy}, turn)
		require.Zero(t, sum)
		require.Zero(t, b.count(`SELECT count(*) FROM queen.stats`))
		_, err = b.store.RefreshStatsNow(t.Context())
		require.NoError(t, err, "an operator is not made to wait")
		require.Len(t, b.keys("queue"), 1)
	})
	b.refresh()
	var locks int64
	b.one([]any{&locks}, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	require.Zero(t, locks, "the lock ends with the refresh")
}

func TestARefreshIsDueOnceForAllReplicas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	state := func(every time.Duration) store.StatsState {
		t.Helper()
		turn, _, err := b.store.RefreshStats(t.Context(), every)
		require.NoError(t, err)
		if turn.State == store.StatsEarly {
			require.Positive(t, turn.Wait)
			require.LessOrEqual(t, turn.Wait, every)
		}
		return turn.State
	}
	clock := func(sinceStart, duration string) {
		b.exec(`UPDATE queen.system_state SET updated_at = now() - $1::text::interval,
			value = jsonb_build_object('elapsedMs', 1000 * extract(epoch FROM $2::text::interval)::int) WHERE key = 'stats_refresh'`, sinceStart, duration)
	}
	_, err := b.store.RefreshStatsNow(t.Context())
	require.NoError(t, err)
	require.Equal(t, store.StatsDone, state(time.Hour), "a refresh on request does not move the clock")
	require.Equal(t, store.StatsEarly, state(time.Hour), "of whichever replica")
	require.Equal(t, store.StatsDone, state(0), "0 does not ask")
	require.Equal(t, store.StatsEarly, state(time.Hour), "but counts")

	clock("59 minutes", "0 s")
	require.Equal(t, store.StatsEarly, state(time.Hour))
	clock("1 hour", "0 s")
	require.Equal(t, store.StatsDone, state(time.Hour))
	clock("1 hour", "10 minutes")
	turn, _, err := b.store.RefreshStats(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, store.StatsEarly, turn.State, "it rests twenty times as long as it took")
	require.InDelta(t, 2.5*60, turn.Wait.Minutes(), 1, "after its end")
	require.InDelta(t, 60, turn.Since.Minutes(), 1)
	clock("-1 minute", "0 s")
	require.Equal(t, store.StatsDone, state(time.Hour), "a clock that was set back stops nothing")
	clock("211 minutes", "10 minutes")
	require.Equal(t, store.StatsDone, state(time.Hour))
}

func TestARefreshThatFailsIsDueAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	b.exec(`ALTER TABLE queen.stats ADD CONSTRAINT refuse CHECK (stat_type <> 'system')`)
	_, _, err := b.store.RefreshStats(t.Context(), time.Hour)
	require.ErrorContains(t, err, "refresh stats")
	require.Zero(t, b.count(`SELECT count(*) FROM queen.stats`), "all or nothing")
	b.exec(`ALTER TABLE queen.stats DROP CONSTRAINT refuse`)
	turn, _, err := b.store.RefreshStats(t.Context(), time.Hour)
	require.NoError(t, err)
	require.Equal(t, store.StatsDone, turn.State)
}

func TestARefreshBoundsItsStatements(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			for name, want := range map[string]string{"statement_timeout": "5s", "idle_in_transaction_session_timeout": "5s"} {
				var locked bool
				var got string
				require.NoError(t, tx.QueryRow(ctx, `SELECT queen.log_stats_lock_v1()`).Scan(&locked))
				require.True(t, locked)
				require.NoError(t, tx.QueryRow(ctx, `SHOW `+name).Scan(&got))
				require.Equal(t, want, got, name)
			}
			return nil
		})
	}))
	var after string
	b.one([]any{&after}, `SHOW statement_timeout`)
	require.Equal(t, "35s", after, "for the transaction only")
}

// A deletion that is still open holds the queue, and soon its stats row: the refresh
// leaves both out and waits for neither.
func TestARefreshDoesNotWaitForADeletion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("stays", "p", 1))
	b.queued(segment("known", "p", 1))
	b.refresh()
	b.queued(segment("new", "p", 1))
	for _, queue := range []string{"new", "known"} {
		b.meanwhile(`SELECT queen.delete_queue_v1($1)`, func() {
			turn, sum, err := b.store.RefreshStats(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, store.StatsDone, turn.State)
			require.EqualValues(t, map[string]int{"new": 2, "known": 1}[queue], sum.Queues)
		}, queue)
		b.refresh()
		b.requireStatsAreExact()
	}
	require.Equal(t, []string{b.queueID("stays")}, b.keys("queue"))
}

// A queue that goes between the reading and the writing is a row less.
func TestAQueueDeletedInTheMiddleIsNoError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	gone, here := uuid.New(), uuid.MustParse(b.queueID("q"))
	ones := []int64{1, 1}
	const write = `SELECT queen.log_stats_write_v1($1, $2, $2, $2, $2, $2, ARRAY[NULL, NULL]::timestamptz[])`
	require.EqualValues(t, 1, b.count(write, []uuid.UUID{gone, here}, ones))
	require.Equal(t, []string{here.String()}, b.keys("queue"))
	require.EqualValues(t, 1, b.count(`SELECT queen.log_stats_bytes_write_v1($1, $2, $2)`, []uuid.UUID{gone, here}, ones))
}

// A deletion waits for a refresh that is writing, and both end well.
func TestADeletionWaitsForTheRefresh(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queued(segment("q", "p", 1))
	deleted := make(chan error, 1)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT queen.log_refresh_all_stats_v1()`); err != nil {
				return err
			}
			go func() {
				_, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), "q")
				deleted <- err
			}()
			return waitUntilBlocked(ctx, tx, 1)
		})
	}))
	require.NoError(t, <-deleted)
	require.Empty(t, b.keys("queue"))
}

// A refresh waits for another one's rollups before it writes any of its own: they need
// not see the same labels, and each could wait for a row that the other removes.
func TestRefreshesThatMeetAddUpInTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"namespace": "n", "task": "t"}`, false)
	b.refresh()
	refreshed := make(chan error, 1)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT 1 FROM queen.stats WHERE stat_type = 'system' FOR NO KEY UPDATE`); err != nil {
				return err
			}
			go func() {
				_, err := b.store.RefreshStatsNow(t.Context())
				refreshed <- err
			}()
			if err := waitUntilBlocked(ctx, tx, 1); err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, `SELECT 1 FROM queen.stats WHERE stat_type IN ('namespace', 'task') FOR UPDATE SKIP LOCKED`)
			require.EqualValues(t, 2, tag.RowsAffected())
			return err
		})
	}))
	require.NoError(t, <-refreshed)
}

// Refreshes of two replicas and of an operator go on beside pushes, acks and
// deletions: nothing fails, and at rest the figures are exact.
func TestRefreshesBesideEverythingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rounds = 40
	queues := []string{"a", "b", "c", "d"}
	var work errgroup.Group
	for _, queue := range queues {
		work.Go(func() error {
			for range rounds {
				v, err := b.store.PushMulti(t.Context(), []store.PushSegment{fresh(queue, "p", 2), fresh(queue, "r", 1)})
				if err != nil && store.Classify(err) != store.Transient {
					return err
				}
				if err != nil || v[0].Status != store.PushQueued {
					continue
				}
				if err := b.consume(v[0].PartitionID, v[0].BaseOffset); err != nil {
					return err
				}
			}
			return nil
		})
	}
	work.Go(func() error {
		for i := range rounds {
			if _, err := b.store.DeleteQueue(t.Context(), store.DefaultTenant(), queues[i%2]); err != nil {
				return err
			}
		}
		return nil
	})
	for range 2 {
		work.Go(func() error {
			for range rounds {
				if _, _, err := b.store.RefreshStatsPaged(t.Context(), 0, 3, 2); err != nil {
					return err
				}
			}
			return nil
		})
	}
	work.Go(func() error {
		for range rounds {
			if _, err := b.store.RefreshStatsNow(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, work.Wait())
	b.refresh()
	b.requireStatsAreExact()
}

// consume moves the cursor of a lane, unless the lane is gone.
func (b *bench) consume(pid uuid.UUID, upto int64) error {
	return b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
			SELECT p.id, 'g', $2 FROM queen.log_partitions AS p WHERE p.id = $1 FOR KEY SHARE
			ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = EXCLUDED.committed`, pid, upto)
		return err
	})
}
