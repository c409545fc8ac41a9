package timers

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"log/slog"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func backlog(tb testing.TB, db *pgdb.DB, timers, lanes int) {
	tb.Helper()
	require.NoError(tb, db.Do(tb.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO queen.log_timers (queue, timer_key, "partition", deliver_at, txn, message_id, payload)
			SELECT 'q', 'order-' || g, 'lane-' || g % $2::int, now() - INTERVAL '1 second' + g * INTERVAL '1 us', 'txn-' || g, gen_random_uuid(),
				convert_to('{"n":' || g || ',"text":"' || repeat('x', 180) || '"}', 'UTF8') FROM generate_series(1, $1::int) AS g`, timers, lanes)
		return err
	}))
	require.NoError(tb, db.Do(tb.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `VACUUM ANALYZE queen.log_timers`)
		return err
	}))
}

func BenchmarkDrain(b *testing.B) {
	db := pgtest.New(b)
	packer, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(b, err)
	var announced atomic.Int64
	s, err := New(Defaults(), Deps{
		Store: store.New(db), Packer: packer, Log: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter(""),
		Announce: func(_ uuid.UUID, _, _ string, n int) { announced.Add(int64(n)) },
	})
	require.NoError(b, err)
	var elapsed time.Duration
	const timers = 50_000
	for b.Loop() {
		backlog(b, db, timers, 100)
		began := time.Now()
		r, err := s.drainAll(b.Context())
		elapsed += time.Since(began)
		require.NoError(b, err)
		require.Equal(b, timers, r.Fired)
		b.Logf("%+v", r)
	}
	b.ReportMetric(float64(timers*b.N)/elapsed.Seconds(), "timers/s")
}
