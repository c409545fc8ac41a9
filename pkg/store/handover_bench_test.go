package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
)

// BenchmarkHandover is what it costs a session of the server, which has to run on this
// machine, to end the leases of some lanes and lease them to the next consumers: µs of
// processor time, by lanes, one message each.
func BenchmarkHandover(b *testing.B) {
	for _, lanes := range []int{1, 4, 8, 32} {
		b.Run(fmt.Sprintf("%d lanes", lanes), func(b *testing.B) { benchmarkHandover(b, lanes, false) })
		b.Run(fmt.Sprintf("%d lanes known", lanes), func(b *testing.B) { benchmarkHandover(b, lanes, true) })
	}
}

func benchmarkHandover(b *testing.B, lanes int, known bool) {
	const messages = 20_000
	db := pgtest.New(b)
	st := store.New(db)
	do := func(sql string, args ...any) {
		require.NoError(b, db.Do(b.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, sql, args...)
			return err
		}))
	}
	m := store.MultiPop{Tenant: store.DefaultTenant(), Queue: "q", Group: "g"}
	for i := range lanes {
		name := fmt.Sprintf("lane-%04d", i)
		_, err := st.PushMulti(b.Context(), []store.PushSegment{fresh("q", name, 1)})
		require.NoError(b, err)
		m.Claims = append(m.Claims, store.PopClaim{Partition: name, Budget: 1, Worker: "worker-of-lane-" + name, MaxBytes: 1 << 20})
	}
	p := store.Pop{Tenant: store.DefaultTenant(), Group: "g", Worker: "w", Budget: 20_000, MaxPartitions: max(lanes, 2), SubMode: "all", LeaseSeconds: 60}
	_, err := st.PopWildcard(b.Context(), "q", p)
	require.NoError(b, err)
	do(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, g * 4, g * 4 + 3, '2026-01-01Z', '\x28b52ffd60400000' || convert_to(repeat('abcdefgh', 60), 'UTF8') FROM queen.log_partitions AS p, generate_series(1, $1::bigint / 4) AS g`, messages)
	do(`UPDATE queen.log_partitions SET last_offset = $1`, messages)
	do(`UPDATE queen.log_consumers SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL, committed = 3`)
	do(`VACUUM ANALYZE`)
	claim, err := st.PopMulti(b.Context(), m)
	require.NoError(b, err)
	var pid uint32
	rows := make([]store.AckRow, lanes)
	var spent int64
	n := 0
	var wall time.Duration
	for b.Loop() {
		if n++; n >= messages-10 {
			break
		}
		for i := range claim {
			s := &claim[i]
			require.Len(b, s.Segments, 1)
			rows[i] = store.AckRow{PartitionID: s.PartitionID, Group: "g", Worker: m.Claims[i].Worker,
				End: s.Segments[0].Base + int64(s.Segments[0].Start), Count: 1}
			m.Claims[i].Worker = "worker-of-" + uuid.NewString()
		}
		if n == 1 {
			require.NoError(b, db.Do(b.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
				pid = conn.PgConn().PID()
				return conn.QueryRow(ctx, "SELECT 1").Scan(nil)
			}))
		}
		before := processorTime(b, pid)
		began := time.Now()
		next := store.Next{Pops: []store.MultiPop{m}}
		if known {
			next = handovers(rows, m.Claims, claim)
		}
		_, served, err := st.AckAndPop(b.Context(), rows, true, next)
		wall += time.Since(began)
		require.NoError(b, err)
		if !known {
			claim = served.Pops[0]
		}
		for i := range served.Handed {
			require.Equal(b, int64(messages), served.Handed[i])
			claim[i].Segments[0].Base, claim[i].Segments[0].Start = next.Handovers[i].Until, 0
		}
		spent += processorTime(b, pid) - before
	}
	b.ReportMetric(float64(spent)/float64(n)/1e3, "µs/call")
	b.ReportMetric(float64(wall.Microseconds())/float64(n), "µs-wall/call")
	b.ReportMetric(float64(spent)/float64(n)/1e3/float64(lanes), "µs/lane")
}

// handovers lease the one message behind each row, in segments of four.
func handovers(rows []store.AckRow, claims []store.PopClaim, last []store.PopServed) (next store.Next) {
	for i, r := range rows {
		next.Handovers = append(next.Handovers, store.Handover{
			Row: i, Worker: claims[i].Worker, Until: r.End + 1,
			Segment: store.KnownSegment{PartitionID: r.PartitionID, Base: (r.End + 1) / 4 * 4, CreatedAt: last[i].Segments[0].CreatedAt},
		})
	}
	return next
}
