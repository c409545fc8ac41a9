package store_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
)

// BenchmarkGroups is what the management of groups costs over 200 queues of 500
// partitions of five segments and one of 100,000 partitions, with three groups: one at
// the end, one that has consumed nothing, and one that is in the middle everywhere.
func BenchmarkGroups(b *testing.B) {
	db := pgtest.New(b)
	st := store.New(db)
	do := func(sql string) {
		require.NoError(b, db.Do(b.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, sql)
			return err
		}))
	}
	do(`INSERT INTO queen.queues (name) SELECT 'q' || n FROM generate_series(1, 200) AS n UNION ALL SELECT 'wide'`)
	do(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at)
		SELECT q.id, 'p' || n, 49, now() - interval '5 hours' FROM queen.queues AS q, generate_series(1, CASE WHEN q.name = 'wide' THEN 100000 ELSE 500 END) AS n`)
	do(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, 10 * n, 10 * n + 9, now() - interval '5 hours' + n * interval '1 hour' + random() * interval '1 hour', '1'
		FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id, generate_series(0, 4) AS n WHERE q.name <> 'wide'`)
	do(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, 0, 49, p.oldest_live_at, '1' FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = 'wide'`)
	do(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, total_consumed)
		SELECT p.id, g.name, g.at, g.at + 1 FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id,
			(VALUES ('done', 49), ('new', -1), ('half', 24)) AS g (name, at) WHERE q.name <> 'wide'`)
	do(`VACUUM ANALYZE`)
	tenant := store.DefaultTenant()
	steps := func(b *testing.B, next func(store.GroupStep) (store.GroupStep, error)) {
		b.Helper()
		n := 0
		for b.Loop() {
			for step, again := (store.GroupStep{}), true; again; again = step.More {
				var err error
				step, err = next(step)
				require.NoError(b, err)
				n++
			}
		}
		b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(n), "ms/step")
	}
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			_, err := st.Groups(b.Context(), tenant)
			require.NoError(b, err)
		}
	})
	for name, seconds := range map[string]int{"lagging by an hour": 3600, "lagging by a week": 7 * 86400} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := st.LaggingLanes(b.Context(), tenant, seconds, 1000)
				require.NoError(b, err)
			}
		})
	}
	b.Run("10000 details", func(b *testing.B) {
		for b.Loop() {
			_, err := st.GroupDetails(b.Context(), tenant, store.GroupPage{Group: "half", Limit: 10_000})
			require.NoError(b, err)
		}
	})
	b.Run("queues of a group", func(b *testing.B) {
		for b.Loop() {
			_, err := st.GroupQueues(b.Context(), tenant, "unknown")
			require.NoError(b, err)
		}
	})
	for name, to := range map[string]store.SeekTo{"the end": toEnd, "the beginning": epoch} {
		b.Run("seek of 100000 to "+name, func(b *testing.B) {
			steps(b, func(step store.GroupStep) (store.GroupStep, error) {
				return st.SeekStep(b.Context(), tenant, "wide", "g", to, step)
			})
		})
	}
	b.Run("seek of 500 to the beginning", func(b *testing.B) {
		steps(b, func(step store.GroupStep) (store.GroupStep, error) {
			return st.SeekStep(b.Context(), tenant, "q7", "done", epoch, step)
		})
	})
	b.Run("deletion of 100000", func(b *testing.B) {
		steps(b, func(step store.GroupStep) (store.GroupStep, error) {
			return st.DeleteGroupStep(b.Context(), tenant, "wide", "g", true, step)
		})
	})
}
