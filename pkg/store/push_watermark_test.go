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

// pushes are the two ways into the allocator: one lane, and several.
func pushes() map[string]func(queue string) []store.PushSegment {
	return map[string]func(queue string) []store.PushSegment{
		"one lane": func(queue string) []store.PushSegment { return []store.PushSegment{fresh(queue, "a", 3)} },
		"several": func(queue string) []store.PushSegment {
			return []store.PushSegment{fresh(queue, "a", 3), fresh(queue, "b", 2)}
		},
	}
}

func watermarks(b *bench, pid uuid.UUID) (live, txn *time.Time) {
	b.one([]any{&live, &txn}, `SELECT oldest_live_at, oldest_txn_at FROM queen.log_partitions WHERE id = $1`, pid)
	return live, txn
}

// wrong counts the lanes whose marks are not what their rows say.
func (b *bench) wrong() int64 {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM queen.log_partitions AS p
		LEFT JOIN LATERAL (SELECT base_offset, created_at FROM queen.log_segments WHERE partition_id = p.id ORDER BY base_offset LIMIT 1) AS s ON TRUE
		LEFT JOIN LATERAL (SELECT base_offset, created_at FROM queen.log_txns WHERE partition_id = p.id ORDER BY base_offset LIMIT 1) AS t ON TRUE
		WHERE p.log_start <> coalesce(s.base_offset, p.last_offset + 1) OR p.oldest_live_at IS DISTINCT FROM s.created_at
		   OR p.txns_start <> coalesce(t.base_offset, p.last_offset + 1) OR p.oldest_txn_at IS DISTINCT FROM t.created_at`)
}

// The first push into an empty lane sets its watermarks, later ones leave them
// alone, and an emptied lane gets new ones.
func TestAPushSetsTheWatermarksOfEmptyLanes(t *testing.T) {
	t.Parallel()
	for name, segments := range pushes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			first := b.push(segments("q")...)
			require.Zero(t, b.wrong())
			b.push(segments("q")...)
			for _, v := range first {
				live, txn := watermarks(b, v.PartitionID)
				require.True(t, v.CreatedAt.Equal(*live))
				require.True(t, v.CreatedAt.Equal(*txn))
			}
			b.exec(`DELETE FROM queen.log_segments`)
			b.exec(`UPDATE queen.log_partitions SET log_start = last_offset + 1, oldest_live_at = NULL`)
			third := b.push(segments("q")...)
			require.Zero(t, b.wrong())
			for i, v := range third {
				live, txn := watermarks(b, v.PartitionID)
				require.True(t, v.CreatedAt.Equal(*live), "its segments were gone")
				require.True(t, first[i].CreatedAt.Equal(*txn), "its sidecar was not")
			}
		})
	}
}

// A lane of before the watermarks holds older rows than the one a push adds: NULL
// has to stay for the walk, which knows what to look for.
func TestAPushLeavesAWatermarkAloneThatIsNotKnown(t *testing.T) {
	t.Parallel()
	for name, segments := range pushes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.push(segments("q")...)
			b.exec(`UPDATE queen.log_partitions SET oldest_live_at = NULL, oldest_txn_at = NULL`)
			for _, v := range b.push(segments("q")...) {
				live, txn := watermarks(b, v.PartitionID)
				require.Nil(t, live)
				require.Nil(t, txn)
			}
		})
	}
}

// No indexed column changes while a lane is pushed to within a second.
func TestSteadyPushesAreHOTUpdates(t *testing.T) {
	t.Parallel()
	const n = 10 // versions of a row that fit into its page
	for name, segments := range pushes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			lanes := len(b.push(segments("q")...))
			// A write in the future keeps the second from ending in mid-test.
			b.exec(`UPDATE queen.log_partitions SET last_write_at = now() + interval '1 hour'`)
			b.exec(`VACUUM queen.log_partitions`)
			require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
				return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
					before, err := updatesOf(ctx, tx)
					require.NoError(t, err)
					for range n {
						require.NoError(t, pushIn(ctx, tx, segments("q")))
					}
					after, err := updatesOf(ctx, tx)
					require.Equal(t, int64(n*lanes), after.all-before.all)
					require.Equal(t, int64(n*lanes), after.hot-before.hot)
					return err
				})
			}))
		})
	}
}

// updates counts those of lanes, and how many of them were HOT.
type updates struct{ all, hot int64 }

// updatesOf reads what the session has not yet reported of earlier transactions too.
func updatesOf(ctx context.Context, tx pgx.Tx) (u updates, err error) {
	err = tx.QueryRow(ctx, `SELECT pg_stat_get_xact_tuples_updated(c), pg_stat_get_xact_tuples_hot_updated(c)
		FROM (SELECT 'queen.log_partitions'::regclass::oid AS c) AS x`).Scan(&u.all, &u.hot)
	return u, err
}

// pushIn pushes segments within a transaction of the test.
func pushIn(ctx context.Context, tx pgx.Tx, segs []store.PushSegment) error {
	var queues, names []string
	var counts []int32
	var verified []int64
	var hashes, blobs [][]byte
	for _, s := range segs {
		queues, names, counts = append(queues, s.Queue), append(names, s.Partition), append(counts, int32(s.Count))
		verified, hashes, blobs = append(verified, store.VerifiedMinted), append(hashes, s.Hashes), append(blobs, s.Blob)
	}
	_, err := tx.Exec(ctx, `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6)`, queues, names, counts, hashes, verified, blobs)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	return nil
}
