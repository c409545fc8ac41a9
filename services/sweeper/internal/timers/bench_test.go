package timers

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

// BenchmarkDrain drains a backlog that lies in a hundred lanes, once by the cycle and
// once by its peer, which claims, packs and fires by turns with claims of the same
// size. QUEEN_TEST_PG_URL names the server to use: the tests' own writes nothing
// through to the disk.
func BenchmarkDrain(b *testing.B) {
	for _, size := range []int{200, 1000} {
		b.Run(fmt.Sprintf("claims of %d", size), func(b *testing.B) {
			db := pgtest.New(b)
			cfg := Defaults()
			cfg.ClaimBatch = size
			s := quietSweeper(b, cfg, db)
			var cycle, peer time.Duration
			const timers = 50_000
			for b.Loop() {
				backlog(b, db, timers, 100)
				began := time.Now()
				r, err := s.drainAll(b.Context())
				cycle += time.Since(began)
				require.NoError(b, err)
				require.Equal(b, timers, r.Fired)

				backlog(b, db, timers, 100)
				began = time.Now()
				byTurns(b, s, size)
				peer += time.Since(began)
			}
			b.ReportMetric(float64(timers*b.N)/cycle.Seconds(), "timers/s")
			b.ReportMetric(float64(timers*b.N)/peer.Seconds(), "peer-timers/s")
			b.ReportMetric(peer.Seconds()/cycle.Seconds(), "ratio")
		})
	}
}

// BenchmarkDrainByTwo drains a backlog by one sweeper, and then one by two.
func BenchmarkDrainByTwo(b *testing.B) {
	db := pgtest.New(b)
	sweepers := []*Sweeper{quietSweeper(b, Defaults(), db), quietSweeper(b, Defaults(), db)}
	var alone, together time.Duration
	const timers = 50_000
	for b.Loop() {
		for n, took := range map[int]*time.Duration{1: &alone, 2: &together} {
			backlog(b, db, timers, 100)
			var fired atomic.Int64
			var running errgroup.Group
			began := time.Now()
			for _, s := range sweepers[:n] {
				running.Go(func() error {
					r, err := s.drainAll(b.Context())
					fired.Add(int64(r.Fired))
					return err
				})
			}
			require.NoError(b, running.Wait())
			*took += time.Since(began)
			require.EqualValues(b, timers, fired.Load())
		}
	}
	b.ReportMetric(float64(timers*b.N)/alone.Seconds(), "timers/s")
	b.ReportMetric(float64(timers*b.N)/together.Seconds(), "two-timers/s")
	b.ReportMetric(alone.Seconds()/together.Seconds(), "ratio")
}

// byTurns claims, packs and fires one batch after the other.
func byTurns(b *testing.B, s *Sweeper, size int) {
	for {
		claimed, err := s.db.TimersClaim(b.Context(), store.TimerClaim{
			Shards: store.Shards(0), Lease: time.Minute, Rows: size, PerTenant: s.cfg.FireRatePerTenant,
		})
		require.NoError(b, err)
		if len(claimed) == 0 {
			return
		}
		batch := make([]*held, len(claimed))
		for i := range claimed {
			batch[i] = &held{ClaimedTimer: claimed[i]}
		}
		volleys, _, _ := s.loader.load(batch)
		for _, v := range volleys {
			_, err := s.db.TimersFire(b.Context(), v.segments())
			require.NoError(b, err)
		}
	}
}

func quietSweeper(tb testing.TB, cfg Config, db *pgdb.DB) *Sweeper {
	tb.Helper()
	packer, err := segment.NewPacker(segment.DefaultLevel)
	require.NoError(tb, err)
	s, err := New(cfg, Deps{
		Store: store.New(db), Packer: packer, Log: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter(""),
		Announce: func(uuid.UUID, string, string, int) {},
	})
	require.NoError(tb, err)
	return s
}

// backlog lays timers that are due, spread over lanes.
func backlog(tb testing.TB, db *pgdb.DB, timers, lanes int) {
	tb.Helper()
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO queen.log_timers (queue, timer_key, "partition", deliver_at, txn, message_id, payload)
			SELECT 'q', 'order-' || g, 'lane-' || g %% %d, now() - INTERVAL '10 second' + g * INTERVAL '1 us', 'txn-' || g, gen_random_uuid(),
				convert_to('{"n":' || g || ',"text":"' || repeat('x', 180) || '"}', 'UTF8') FROM generate_series(1, %d) AS g`, lanes, timers),
		`VACUUM ANALYZE queen.log_timers`,
	} {
		require.NoError(tb, db.Do(tb.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, sql)
			return err
		}))
	}
}

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
