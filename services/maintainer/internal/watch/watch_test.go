package watch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/maintainer/internal/watch"
)

var errAway = errors.New("away")

// database answers what a test says.
type database struct {
	health  store.DatabaseHealth
	queues  []store.QueueBacklog
	groups  []store.GroupLag
	off     int64
	err     error
	lagging time.Duration // that a look at the lag takes
	lags    int           // looks
}

func (d *database) DatabaseHealth(context.Context) (store.DatabaseHealth, error) {
	return d.health, d.err
}

func (d *database) QueueBacklogs(context.Context, int) ([]store.QueueBacklog, error) {
	return d.queues, d.err
}

func (d *database) GroupLags(context.Context, int) ([]store.GroupLag, error) {
	d.lags++
	time.Sleep(d.lagging)
	return slices.Clone(d.groups), d.err
}

func (d *database) RetentionSwitchedOff(context.Context) (int64, error) { return d.off, d.err }

type bundle struct {
	*watch.Watch
	db     *database
	reader *sdk.ManualReader
}

// on runs a test inside a bubble.
func on(t *testing.T, maxQueues int, test func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bundle{reader: sdk.NewManualReader(), db: &database{}}
		log, _ := logtest.NewRecorder()
		var err error
		b.Watch, err = watch.New(watch.Config{MaxQueues: maxQueues}, watch.Deps{
			Store: b.db, Log: log, Meter: sdk.NewMeterProvider(sdk.WithReader(b.reader)).Meter("test"),
		})
		require.NoError(t, err)
		test(t, b)
	})
}

// collect is what somebody sees who collects now.
func (b *bundle) collect(t *testing.T) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &rm))
	got := map[string]float64{}
	put := func(name string, set attribute.Set, value float64) {
		got[strings.TrimSuffix(name+" "+set.Encoded(attribute.DefaultEncoder()), " ")] = value
	}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				put(m.Name, p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				put(m.Name, p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				put(m.Name, p.Attributes, p.Value)
			}
		}
	}
	return got
}

func TestWhatWasSeenIsShown(t *testing.T) {
	on(t, 10, func(t *testing.T, b *bundle) {
		require.Equal(t, map[string]float64{"queen.postgres.up": 0}, b.collect(t), "nothing was seen yet")
		wal := int64(16)
		b.db.health = store.DatabaseHealth{
			OldestSnapshot: 1, LongestTransaction: 2, LongTransactions: 3, LongestIdle: 4, IdleInTransaction: 5, WaitingForLocks: 6,
			Connections: 7, MaxConnections: 8, ReservedConnections: 9, Horizons: map[string]int64{"slot": 10},
			Tables: []store.TableRows{{Table: "kv", Live: 11, Dead: 12}}, DatabaseBytes: 13, FreezeAge: 14, WALWritten: 15, WALBytes: &wal,
		}
		b.db.queues = []store.QueueBacklog{{Queue: "q", Partitions: 17, Pending: 18, Processing: 19, RetainedBytes: 20, OldestPendingSeconds: 21.5}}
		b.db.groups = []store.GroupLag{{Queue: "q", Group: "g", Messages: 22}}
		b.db.off = 23
		require.NoError(t, b.Look(t.Context()))
		want := map[string]float64{
			"queen.postgres.up": 1, "queen.postgres.oldest_snapshot": 1, "queen.postgres.longest_transaction": 2,
			"queen.postgres.long_transactions": 3, "queen.postgres.longest_idle_transaction": 4, "queen.postgres.idle_transactions": 5,
			"queen.postgres.lock_waiters": 6, "queen.postgres.connections": 7, "queen.postgres.max_connections": 8,
			"queen.postgres.reserved_connections": 9, "queen.postgres.horizon_age holder=slot": 10,
			"queen.postgres.table_live_rows table=kv": 11, "queen.postgres.table_dead_rows table=kv": 12,
			"queen.postgres.database_size": 13, "queen.postgres.freeze_age": 14, "queen.postgres.wal_written": 15, "queen.postgres.wal_size": 16,
			"queen.queue.partitions queue=q": 17, "queen.queue.pending_messages queue=q": 18, "queen.queue.processing_messages queue=q": 19,
			"queen.queue.retained queue=q": 20, "queen.queue.oldest_pending queue=q": 21.5,
			"queen.consumer_group.lag_messages group=g,queue=q": 22, "queen.retention.switched_off_queues": 23,
		}
		require.Equal(t, want, b.collect(t))

		b.db.health.WALBytes = nil
		require.NoError(t, b.Look(t.Context()))
		delete(want, "queen.postgres.wal_size")
		require.Equal(t, want, b.collect(t), "a role that may not look")

		b.db.err = errAway
		require.ErrorIs(t, b.Look(t.Context()), errAway)
		want["queen.postgres.up"] = 0
		time.Sleep(watch.Stale - 1)
		require.Equal(t, want, b.collect(t))
		time.Sleep(time.Nanosecond)
		require.Equal(t, map[string]float64{"queen.postgres.up": 0}, b.collect(t), "what is old is not shown")
	})
}

func TestALookAtTheLagTakesATwentiethOfTheTime(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		takes time.Duration
		looks int // in an hour
	}{{0, 120}, {time.Second, 120}, {10 * time.Second, 17}} {
		t.Run(fmt.Sprint(tc.takes), func(t *testing.T) {
			on(t, 10, func(t *testing.T, b *bundle) {
				b.db.lagging = tc.takes
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				require.NoError(t, b.Run(ctx))
				require.InEpsilon(t, tc.looks, b.db.lags, 0.35)
			})
		})
	}
}

func TestTheGroupsThatLagMostAreShown(t *testing.T) {
	on(t, 1, func(t *testing.T, b *bundle) {
		lags := func(groups ...store.GroupLag) map[string]float64 {
			b.db.groups = groups
			time.Sleep(watch.LagEvery)
			require.NoError(t, b.Look(t.Context()))
			got := map[string]float64{}
			for name, n := range b.collect(t) {
				if label, ok := strings.CutPrefix(name, "queen.consumer_group.lag_messages "); ok {
					got[label] = n
				}
			}
			return got
		}
		fast, slow, idle := store.GroupLag{Queue: "q", Group: "fast", Messages: 1}, store.GroupLag{Queue: "q", Group: "slow", Messages: 9}, store.GroupLag{Queue: "q", Group: "idle"}
		require.Equal(t, map[string]float64{"group=slow,queue=q": 9, "group=fast,queue=q": 1}, lags(fast, slow))
		require.Equal(t, map[string]float64{"group=slow,queue=q": 9, "group=fast,queue=q": 1, "group=other,queue=q": 0}, lags(idle, fast, slow))
		other := store.GroupLag{Queue: "q", Group: "other", Messages: 20}
		require.Equal(t, map[string]float64{"group=other,queue=q": 21, "group=slow,queue=q": 9}, lags(fast, slow, other, idle))
		elsewhere := store.GroupLag{Queue: "p", Group: "g", Messages: 3}
		require.Equal(t, map[string]float64{"group=slow,queue=q": 9, "group=g,queue=p": 3, "group=other,queue=q": 1}, lags(fast, slow, elsewhere, idle))
	})
}
