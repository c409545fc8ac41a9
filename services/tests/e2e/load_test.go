package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// load is pushers and consumers of one queue that go on through whatever
// happens to the brokers and to PostgreSQL.
type load struct {
	t       *testing.T
	b       *harness.Broker
	l       *ledger
	queue   string
	groups  []string
	lanes   []string
	cancel  context.CancelFunc
	enough  context.CancelFunc // ends the pushing
	pushers sync.WaitGroup
	readers sync.WaitGroup
}

// loadOptions size a load.
type loadOptions struct {
	pushers, readers int
	pushSize         int // at most
	habits           habits
	limit            time.Duration // of everything
}

const progressLimit = 60 * time.Second

// startLoad configures the queue, so that no nack ends in a dead letter, and
// starts the clients. Two groups share the readers.
func startLoad(t *testing.T, b *harness.Broker, queue string, rng *rand.Rand, o loadOptions) *load {
	t.Helper()
	b.Configure(t, queue, `{"retryLimit":1000000}`)
	x := &load{t: t, b: b, l: newLedger(), queue: queue, groups: []string{"g0", "g1"}, lanes: lanes(8)}
	var ctx, pushing context.Context
	ctx, x.cancel = context.WithTimeout(t.Context(), o.limit)
	pushing, x.enough = context.WithCancel(ctx)
	t.Cleanup(x.stop)
	for i := range o.pushers {
		w := newWorker(t, b, x.l, queue, "", rng.Uint64(), true)
		x.pushers.Go(func() {
			for n := 0; pushing.Err() == nil; n++ {
				w.push(ctx, fmt.Sprintf("%d-%d", i, n), x.lanes, 1+w.rng.IntN(o.pushSize))
				pause(pushing) // the consumers have to keep up
			}
		})
	}
	for i := range o.readers {
		w := newWorker(t, b, x.l, queue, x.groups[i%len(x.groups)], rng.Uint64(), true)
		w.habits = o.habits
		x.readers.Go(func() { w.consume(ctx, x.lanes) })
	}
	return x
}

// stop ends all clients.
func (x *load) stop() {
	x.enough()
	x.cancel()
	x.pushers.Wait()
	x.readers.Wait()
}

// advance waits until n more pushes are acknowledged, and answers how long
// that took.
func (x *load) advance(n int, within time.Duration) time.Duration {
	x.t.Helper()
	began, before := time.Now(), x.l.pushedCount()
	harness.Eventually(x.t, within, fmt.Sprintf("%d more pushes are acknowledged", n), func() bool { return x.l.pushedCount() >= before+n })
	return time.Since(began)
}

// drainPushes lets the pushers end what they have begun.
func (x *load) drainPushes() {
	x.enough()
	x.pushers.Wait()
}

// finish ends the pushing, waits until every group has committed everything, and
// judges what the clients saw.
func (x *load) finish() {
	x.t.Helper()
	x.drainPushes()
	harness.Eventually(x.t, progressLimit, "every group has committed everything", func() bool { return caughtUp(x.t, x.b, x.queue, x.groups...) })
	x.judge()
}

// judge ends the readers and decides whether the promises were kept.
func (x *load) judge() {
	x.t.Helper()
	x.stop()
	x.l.verify(x.t, x.l.offsets(x.t, x.b, x.queue), x.groups...)
	require.Empty(x.t, x.b.DLQ(x.t, x.queue, ""))
}

// footprint is what an idle broker uses.
type footprint struct{ goroutines, heap float64 }

const (
	// spareGoroutines are what an idle broker may have more of than before a
	// load: idle connections of clients and of the pool, timers that run out. A
	// leak of one a request is far beyond.
	spareGoroutines = 60
	// heapLimit bounds what a broker keeps after a small load.
	heapLimit = 256 << 20
)

func footprints(t *testing.T, b *harness.Broker) []footprint {
	t.Helper()
	out := make([]footprint, len(b.Each))
	for i, one := range b.Each {
		out[i] = footprint{one.Metric(t, "go_goroutines"), one.Metric(t, "go_memstats_heap_inuse_bytes")}
	}
	return out
}

// requireNoLeak requires that brokers without a load come back to about what
// they used before it, and that no session of theirs is stuck.
func requireNoLeak(t *testing.T, b *harness.Broker, before []footprint) {
	t.Helper()
	b.CloseIdle()
	var now []footprint
	harness.Eventually(t, 30*time.Second, "no session is at work", func() bool {
		return harness.Value[int](t, b.DB, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'queen-broker'
			AND (state IN ('active', 'idle in transaction') AND clock_timestamp() - state_change > interval '3 seconds')`) == 0
	})
	deadline := time.Now().Add(30 * time.Second)
	for leaking := true; leaking; time.Sleep(100 * time.Millisecond) {
		now, leaking = footprints(t, b), false
		for i := range now {
			leaking = leaking || now[i].goroutines > before[i].goroutines+spareGoroutines
		}
		require.True(t, time.Now().Before(deadline), "goroutines: %+v, before the load %+v", now, before)
	}
	for i := range now {
		require.Less(t, now[i].heap, float64(heapLimit), "broker %d", i)
	}
	harness.Eventually(t, 30*time.Second, "no session is left behind", func() bool {
		return harness.Value[int](t, b.DB, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'queen-broker'`) <= sessionsOf(len(b.Each))
	})
}

// sessionsOf is how many sessions n brokers of the suite may have: their pools.
func sessionsOf(n int) int { return 12 * n }
