package store_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
)

// BenchmarkPopList is what one claim with its commit costs on a session of the
// server, which has to run on this machine: µs of processor time, by lanes, and
// segments of each.
func BenchmarkPopList(b *testing.B) {
	for _, lanes := range []int{1, 4, 16, 64} {
		for _, s := range []struct{ segments, messages, bytes int }{{1, 1, 300}, {2, 100, 22_000}} {
			b.Run(fmt.Sprintf("%d lanes of %d segments of %d", lanes, s.segments, s.messages), func(b *testing.B) {
				benchmarkPopList(b, lanes, s.segments, s.messages, s.bytes)
			})
		}
	}
}

func benchmarkPopList(b *testing.B, lanes, segments, messages, size int) {
	db := pgtest.New(b)
	st := store.New(db)
	names := make([]string, lanes)
	do := func(sql string, args ...any) {
		require.NoError(b, db.Do(b.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, sql, args...)
			return err
		}))
	}
	for i := range names {
		names[i] = fmt.Sprintf("lane-%04d", i)
		for range segments {
			seg := fresh("q", names[i], messages)
			// The header of a frame of 256 * messages bytes.
			seg.Blob = append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x60, byte(messages - 1), byte(messages)}, bytes.Repeat([]byte{7}, size)...)
			_, err := st.PushMulti(b.Context(), []store.PushSegment{seg})
			require.NoError(b, err)
		}
	}
	p := store.Pop{Tenant: store.DefaultTenant(), Group: "g", Worker: "w", Budget: 20_000, MaxPartitions: max(lanes, 2), SubMode: "all", LeaseSeconds: 60}
	_, err := st.PopWildcard(b.Context(), "q", p)
	require.NoError(b, err)
	p.MaxBytes = 16 << 20
	do(`VACUUM ANALYZE`)
	reset := func() {
		do(`UPDATE queen.log_consumers SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL`)
	}
	var spent, pops int64
	best := int64(1) << 62
	for b.Loop() {
		reset()
		var pid uint32
		require.NoError(b, db.Do(b.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			pid = conn.PgConn().PID()
			return conn.QueryRow(ctx, "SELECT 1").Scan(nil)
		}))
		before := processorTime(b, pid)
		r, err := st.PopList(b.Context(), "q", names, false, p)
		require.NoError(b, err)
		require.Len(b, r.Claimed, lanes)
		d := processorTime(b, pid) - before
		best = min(best, d)
		spent += d
		pops++
	}
	b.ReportMetric(float64(spent)/float64(pops)/1e3, "µs/call")
	b.ReportMetric(float64(best)/1e3, "µs/best")
	b.ReportMetric(float64(spent)/float64(pops)/1e3/float64(lanes), "µs/lane")
}

// processorTime is what a process has used, in nanoseconds.
func processorTime(b *testing.B, pid uint32) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Skip("the server is not on this machine, or this is no Linux")
	}
	n, err := strconv.ParseInt(string(bytes.Fields(text)[0]), 10, 64)
	require.NoError(b, err)
	return n
}
