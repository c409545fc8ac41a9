package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
)

// BenchmarkTimersDrain claims and fires a backlog of due timers, spread over a hundred
// lanes, by claims of several lengths. The processor time is that of the session on the
// server, which has to run on this machine.
func BenchmarkTimersDrain(b *testing.B) {
	for _, claim := range []int{200, 1000} {
		b.Run(fmt.Sprintf("claims of %d", claim), func(b *testing.B) { benchmarkDrain(b, 20_000, claim) })
	}
}

func benchmarkDrain(b *testing.B, timers, claim int) {
	db := pgtest.New(b) // used by one after the other, which is one session
	st := store.New(db)
	var pid uint32
	do := func(sql string, args ...any) {
		require.NoError(b, db.Do(b.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			pid = conn.PgConn().PID()
			_, err := conn.Exec(ctx, sql, args...)
			return err
		}))
	}
	var claiming, firing time.Duration
	var claimCPU, fireCPU int64
	drained := 0
	for b.Loop() {
		do(`INSERT INTO queen.log_timers (queue, timer_key, "partition", deliver_at, txn, message_id, payload)
			SELECT 'q', 'order-' || g, 'lane-' || g % 100, now() - INTERVAL '1 second' + g * INTERVAL '1 us', 'txn-' || g, gen_random_uuid(),
				convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $1::int) AS g`, timers)
		do(`VACUUM ANALYZE queen.log_timers`)
		for left := timers; left > 0; {
			began, cpu := time.Now(), processorTime(b, pid)
			claimed, err := st.TimersClaim(b.Context(), store.TimerClaim{Shards: store.Shards(left), Lease: time.Minute, Rows: claim})
			require.NoError(b, err)
			require.NotEmpty(b, claimed)
			claiming += time.Since(began)
			claimCPU += processorTime(b, pid) - cpu
			segs := bundled(claimed)
			for i := range segs {
				segs[i].Blob = make([]byte, 100*len(segs[i].Keys))
			}
			began, cpu = time.Now(), processorTime(b, pid)
			verdicts, err := st.TimersFire(b.Context(), segs)
			require.NoError(b, err)
			firing += time.Since(began)
			fireCPU += processorTime(b, pid) - cpu
			for _, v := range verdicts {
				require.True(b, v.Fired)
			}
			left -= len(claimed)
			drained += len(claimed)
		}
	}
	b.ReportMetric(float64(drained)/(claiming+firing).Seconds(), "timers/s")
	b.ReportMetric(float64(drained)/float64(claimCPU+fireCPU)*1e9, "timers/cpu-s")
	b.ReportMetric(float64(claimCPU)/1e3/float64(drained), "µs-claim")
	b.ReportMetric(float64(fireCPU)/1e3/float64(drained), "µs-fire")
}
