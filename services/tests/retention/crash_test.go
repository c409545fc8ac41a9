package retention_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/harness"
)

const (
	crashRounds     = 15
	longCrashRounds = 100
)

// TestMaintainerMayEndAtAnyMoment kills a maintainer under load again and again,
// and sometimes its PostgreSQL instead. After each time, and at the end, the
// lanes' notes, their rows and the history agree.
func TestMaintainerMayEndAtAnyMoment(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Server: true})
	x := &cell{Broker: stage.Broker, queue: "aged", sweep: new(sync.Mutex)}
	l := &ledger{queue: x.queue, lanes: 8}
	fleeting := &ledger{queue: "fleeting", lanes: 8}
	followLanes(t, x.DB)
	x.Configure(t, l.queue, `{"retentionEnabled":true,"retentionSeconds":2,"completedRetentionSeconds":1}`)
	x.Configure(t, fleeting.queue, `{"maxWaitTimeSeconds":1}`)
	m := harness.StartMaintainer(t, x.DB, "RETENTION_INTERVAL=20", "RETENTION_BATCH_SIZE=4")

	ctx, load := newTurmoil(t)
	for range 3 {
		load.loop(ctx, "push", 10*time.Millisecond, func(ctx context.Context, rng *rand.Rand) error {
			return pushThrough(ctx, x.Broker, []*ledger{l, fleeting}[rng.IntN(2)], rng)
		})
	}
	load.loop(ctx, "consume", 10*time.Millisecond, func(ctx context.Context, rng *rand.Rand) error {
		if lane := l.lane(rng); lane < "lane-04" { // the others age
			_, _ = x.TryPop(ctx, harness.PopPartitionPath(l.queue, lane, "batch=50&autoAck=true&consumerGroup=g")) // the server may be away
		}
		return nil
	})
	load.loop(ctx, "let hashes get old", 50*time.Millisecond, func(ctx context.Context, rng *rand.Rand) error {
		letHashesGetOld(ctx, x.DB, l.lane(rng))
		return nil
	})
	rounds := crashRounds
	if harness.Long() {
		rounds = longCrashRounds
	}
	rng := seeded(t)
	for i := range rounds {
		select { // the moment is the point of the test
		case <-t.Context().Done():
		case <-time.After(time.Duration(rng.IntN(1200)) * time.Millisecond):
		}
		if i%5 == 4 { // the maintainer has to get over it by itself
			require.NoError(t, stage.Server.Restart(t.Context(), pglocal.ModeImmediate))
			x.DB.Pool.Reset()
			requireSound(t, x.DB)
			requireSweeping(t, x.DB)
			continue
		}
		m.Kill()
		requireSound(t, x.DB)
		m.Restart(t)
	}
	requireSweeping(t, x.DB)
	load.stop()
	load.requireTurns()
	kinds := (&hunt{cell: x}).kinds(t)
	t.Logf("%v", kinds)
	for _, kind := range []string{byAge, byConsumed, byMaxWait} {
		require.Contains(t, kinds, kind)
	}
	require.Positive(t, harness.Value[int64](t, x.DB, `SELECT max(txns_start) FROM queen.log_partitions`))
	m.Kill()
	requireSound(t, x.DB)
	l.requireNothingLost(t, x.DB)
	fleeting.requireNothingLost(t, x.DB)
}

// requireSweeping waits until something more is deleted.
func requireSweeping(t *testing.T, db *harness.Database) {
	t.Helper()
	swept := func() int64 {
		return harness.Value[int64](t, db, `SELECT COALESCE(max(id), 0) FROM queen.retention_history`)
	}
	before := swept()
	harness.Eventually(t, 20*time.Second, "sweeping goes on", func() bool { return swept() > before })
}

// lane is one of the ledger's lanes.
func (l *ledger) lane(rng *rand.Rand) string { return fmt.Sprintf("lane-%02d", rng.IntN(l.lanes)) }

// pushThrough repeats a push, whatever happens to the server, until it is
// acknowledged: the ids keep it from being stored twice.
func pushThrough(ctx context.Context, b *harness.Broker, l *ledger, rng *rand.Rand) error {
	items := l.items(rng, 6)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if err := l.push(ctx, b, items[:1]); err == nil {
			items = items[1:]
		}
		if len(items) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%d messages are not stored for a minute", len(items))
}

// letHashesGetOld moves what a lane has of its sidecar for some time behind its
// window. A push that is tried again is younger: its hashes are still needed.
func letHashesGetOld(ctx context.Context, db *harness.Database, lane string) {
	// One statement, so that a crash leaves all of it or nothing.
	_, _ = db.Pool.Exec(ctx, `
		WITH mine AS (
			SELECT p.id FROM queen.log_partitions AS p WHERE p.name = $1 ORDER BY p.id FOR NO KEY UPDATE
		), old AS (
			UPDATE queen.log_txns AS x SET created_at = x.created_at - interval '1 day'
			FROM mine AS m WHERE x.partition_id = m.id AND x.created_at < clock_timestamp() - interval '4 seconds'
			RETURNING x.partition_id, x.base_offset, x.created_at
		)
		UPDATE queen.log_partitions AS p SET oldest_txn_at = o.created_at
		FROM (SELECT DISTINCT ON (partition_id) partition_id, created_at FROM old ORDER BY partition_id, base_offset) AS o
		WHERE p.id = o.partition_id`, lane)
}
