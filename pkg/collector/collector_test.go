package collector

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
)

// fakeStore remembers the flushes that were offered.
type fakeStore struct {
	mu      sync.Mutex
	hangs   bool // until the caller gives up
	offered []offer
	fail    []error // of the next offers
	events  int
	folds   int
}

type offer struct {
	at     time.Time
	flush  store.MetricsFlush
	failed bool
}

func (f *fakeStore) FlushMetrics(ctx context.Context, m *store.MetricsFlush) (int, error) {
	if f.hangs {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if len(f.fail) > 0 {
		err, f.fail = f.fail[0], f.fail[1:]
	}
	f.offered = append(f.offered, offer{time.Now(), *m, err != nil})
	return len(m.Queues), err
}

func (f *fakeStore) FoldPartitionEvents(_ context.Context, rows int) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.folds++
	n := min(rows, f.events)
	f.events -= n
	return n, nil
}

// offers are the flushes so far.
func (f *fakeStore) offers() []offer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.offered)
}

type bundle struct {
	*Collector
	store *fakeStore
	lines *logtest.Recorder
	stop  func()
}

// on runs a collector inside a bubble.
func on(t *testing.T, cfg Config, fs *fakeStore, test func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewRecorder()
		c, err := New(cfg, Deps{
			Store: fs, Replica: store.Replica{Service: "broker", Host: "me", Port: 6632},
			Pool:     func() pgdb.Stat { return pgdb.Stat{Size: 5, Idle: 3, InUse: 2} },
			Counters: NewCounters(QueuesDefault), Meter: noop.Meter{}, Log: log,
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		b := &bundle{Collector: c, store: fs, lines: lines, stop: func() {
			cancel()
			require.NoError(t, <-done)
		}}
		synctest.Wait()
		test(t, b)
	})
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestACollectorFlushesAtIntervalsAndAtTheEnd(t *testing.T) {
	on(t, Config{Flush: time.Minute}, &fakeStore{}, func(t *testing.T, b *bundle) {
		began := time.Now()
		b.Counters.Add(Queue(tenant, "a"), &Counts{PushRequests: 1})
		pass(time.Minute)
		require.Len(t, b.store.offers(), 1)
		first := b.store.offers()[0]
		require.WithinRange(t, first.at, began.Add(54*time.Second), began.Add(time.Minute))
		require.Equal(t, int64(1), first.flush.Worker.PushRequests)
		require.Equal(t, first.at.Sub(began), first.flush.Interval)
		require.Equal(t, store.Replica{Service: "broker", Host: "me", Port: 6632}, first.flush.Replica)
		require.Equal(t, []int{2, 3}, []int{first.flush.Worker.InUse, first.flush.Worker.Idle})
		require.Equal(t, []int{5, 3, 2}, []int{
			first.flush.System.Database.Size, first.flush.System.Database.Idle, first.flush.System.Database.Active,
		})

		b.Counters.Add(Queue(tenant, "a"), &Counts{PushRequests: 2})
		b.stop()
		require.Len(t, b.store.offers(), 2)
		require.Equal(t, int64(2), b.store.offers()[1].flush.Worker.PushRequests)
		require.NotEqual(t, first.flush.ID, b.store.offers()[1].flush.ID)
	})
}

func TestTheIntervalHasAFloor(t *testing.T) {
	t.Parallel()
	for requested, effective := range map[time.Duration]time.Duration{
		0: time.Second, 999 * time.Millisecond: time.Second, time.Second: time.Second, 1001 * time.Millisecond: 1001 * time.Millisecond,
	} {
		require.Equal(t, effective, Config{Flush: requested}.interval(), requested)
	}
	require.NoError(t, Config{Flush: 24 * time.Hour}.Validate())
	require.ErrorContains(t, Config{Flush: 24*time.Hour + time.Millisecond}.Validate(), "METRICS_FLUSH_MS")
}

func TestAFailedFlushIsOfferedAgainAndTheCountsGoOn(t *testing.T) {
	fs := &fakeStore{fail: []error{pgdb.ErrPool, pgdb.ErrPool}}
	on(t, Config{Flush: time.Second}, fs, func(t *testing.T, b *bundle) {
		for i := range 4 {
			b.Counters.Add(Queue(tenant, "a"), &Counts{PushRequests: 1 << i})
			pass(time.Second)
		}
		b.stop()
		require.Contains(t, b.lines.String(), "metrics not written")
		ids, total, written := map[uuid.UUID]int{}, int64(0), 0
		for _, o := range fs.offers() {
			ids[o.flush.ID]++
			if !o.failed {
				written++
				total += o.flush.Worker.PushRequests
				require.Equal(t, o.flush.Worker.PushRequests, rowOf(o.flush, "a"))
			}
		}
		require.Equal(t, 3, ids[fs.offers()[0].flush.ID], "offered until it is there")
		require.Equal(t, int64(1), fs.offers()[0].flush.Worker.PushRequests, "with what it had at first")
		require.Equal(t, len(ids), written)
		require.Equal(t, int64(15), total)
	})
}

func rowOf(f store.MetricsFlush, queue string) int64 {
	for _, q := range f.Queues {
		if *q.Queue == queue {
			return q.PushRequests
		}
	}
	return 0
}

func TestARefusedFlushIsGivenUp(t *testing.T) {
	fs := &fakeStore{fail: []error{&pgconn.PgError{Code: "22003"}}}
	on(t, Config{Flush: time.Second}, fs, func(t *testing.T, b *bundle) {
		b.Counters.Add(Queue(tenant, "a"), &Counts{PushRequests: 1})
		pass(time.Second)
		b.Counters.Add(Queue(tenant, "a"), &Counts{PushRequests: 2})
		b.stop()
		require.Len(t, fs.offers(), 2)
		require.NotEqual(t, fs.offers()[0].flush.ID, fs.offers()[1].flush.ID)
		require.Equal(t, int64(2), fs.offers()[1].flush.Worker.PushRequests)
		require.Contains(t, b.lines.String(), "given up")
	})
}

func TestALongFailureIsNotLoggedAllTheTime(t *testing.T) {
	fs := &fakeStore{}
	for range 100 {
		fs.fail = append(fs.fail, pgdb.ErrPool)
	}
	on(t, Config{Flush: time.Second}, fs, func(t *testing.T, b *bundle) {
		pass(90 * time.Second)
		b.stop()
		lines := strings.Count(b.lines.String(), "level=WARN")
		require.GreaterOrEqual(t, lines, 3)
		require.LessOrEqual(t, lines, 4)
	})
}

func TestADeadDatabaseDoesNotHoldUpTheStop(t *testing.T) {
	on(t, Config{Flush: time.Second}, &fakeStore{hangs: true}, func(t *testing.T, b *bundle) {
		pass(5 * time.Second) // a flush is under way
		began := time.Now()
		b.stop()
		require.Equal(t, lastTimeout, time.Since(began))
	})
}

func TestFullCountersAreFlushedEarlyButNotInASpin(t *testing.T) {
	fs := &fakeStore{}
	on(t, Config{Flush: time.Hour}, fs, func(t *testing.T, b *bundle) {
		b.Counters.perShard = 1
		for round := 1; round <= 3; round++ {
			for i := range 100 {
				b.Counters.Add(Queue(tenant, fmt.Sprint("q", i)), &Counts{PushRequests: 1})
			}
			pass(FlushFloor - time.Millisecond)
			require.Len(t, fs.offers(), round-1)
			pass(time.Millisecond)
			require.Len(t, fs.offers(), round)
		}
		b.stop()
	})
}

func TestPartitionEventsAreMovedInBoundedSteps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ events, left, folds int }{
		{0, 0, 1}, {foldRows - 1, 0, 1}, {foldRows, 0, 2}, {foldRows * foldRounds, 0, foldRounds}, {foldRows*foldRounds + 1, 1, foldRounds},
	} {
		t.Run(fmt.Sprint(c.events), func(t *testing.T) {
			on(t, Config{Flush: time.Hour}, &fakeStore{events: c.events}, func(t *testing.T, b *bundle) {
				b.stop()
				require.Equal(t, c.left, b.store.events)
				require.Equal(t, c.folds, b.store.folds)
			})
		})
	}
}

func TestAProcessWithoutQueuesTellsItsState(t *testing.T) {
	t.Parallel()
	fs := &fakeStore{}
	c, err := New(Config{}, Deps{
		Store: fs, Pool: func() pgdb.Stat { return pgdb.Stat{} }, Meter: noop.Meter{}, Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	require.NoError(t, c.flush(t.Context()))
	require.Len(t, fs.offers(), 1)
	require.Empty(t, fs.offers()[0].flush.Queues)
	require.Positive(t, fs.offers()[0].flush.System.Memory.RSS)
}
