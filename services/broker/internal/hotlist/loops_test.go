package hotlist

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

// live runs a test with the loops of a list, in a bubble of its own time.
func live(t *testing.T, cfg Config, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, store: &fakeStore{settings: map[string]store.QueueSettings{}, lanes: map[string][]store.PartitionRef{}, recent: map[string][]store.PartitionRef{}}, waker: &fakeWaker{heard: make(chan struct{}, 1)}}
		l, err := New(cfg, Deps{Store: b.store, Waker: b.waker, Meter: noop.Meter{}, Logger: logtest.New(t)})
		require.NoError(t, err)
		b.List = l
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		b.reseed()
		test(t, b)
		cancel()
		require.NoError(t, <-done)
	})
}

// woken is how long it takes until the waker is called.
func (b *bench) woken() time.Duration {
	began := time.Now()
	<-b.waker.heard
	return time.Since(began)
}

// wait asks like a parked pop, once a second or when woken, until it is served, and
// returns how long that took.
func (b *bench) wait() time.Duration {
	began := time.Now()
	for {
		if _, state := b.ask(); state == Served {
			return time.Since(began)
		}
		select {
		case <-b.waker.heard:
		case <-time.After(time.Second):
		}
	}
}

func TestRule11LostHintCostsAtMostTwoSeconds(t *testing.T) {
	t.Parallel()
	for _, offset := range []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond, 999 * time.Millisecond} {
		t.Run(fmt.Sprint(offset), func(t *testing.T) {
			t.Parallel()
			live(t, Config{}, func(t *testing.T, b *bench) {
				_, state := b.ask()
				require.Equal(t, Empty, state)
				time.Sleep(3*time.Second + offset)
				b.ask()
				b.store.mu.Lock() // written, but nobody says so
				b.store.recent["q/g"] = []store.PartitionRef{{ID: idOf("p"), Name: "p"}}
				b.store.mu.Unlock()
				require.LessOrEqual(t, b.wait(), 2*time.Second)
			})
		})
	}
}

func TestRule11OneQueryASecondForAllWhoWait(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		for i := range 20 {
			require.NoError(t, b.Reseed(t.Context(), tenant, fmt.Sprint("queue-", i), "g"))
		}
		for range 100 {
			for i := range 20 {
				b.Checkout(tenant, fmt.Sprint("queue-", i), "g", 1, 1)
			}
			time.Sleep(100 * time.Millisecond)
		}
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		require.InDelta(t, 10, len(b.store.watches), 1)
	})
}

func TestRule11FullReseedEveryThirtySeconds(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		b.ask()
		time.Sleep(40 * time.Second) // the watch no longer sees what follows
		b.store.list("p")
		require.LessOrEqual(t, b.wait(), ReseedDefault+FloorTick)
	})
}

func TestRule11WatchGoesFurtherBackAfterAFailure(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		step := func(err error, n int) {
			b.store.mu.Lock()
			b.store.err = err
			b.store.mu.Unlock()
			for range n {
				b.ask()
				time.Sleep(WatchTick)
			}
		}
		step(nil, 2)
		step(errDown, 5)
		step(nil, 4)
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		longest := time.Duration(0)
		for _, span := range b.store.watches {
			longest = max(longest, span)
		}
		require.GreaterOrEqual(t, longest, 5*WatchTick+WatchSpan-WatchTick)
		require.Equal(t, WatchSpan, b.store.watches[len(b.store.watches)-1])
	})
}

func TestRule14LockedLaneIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		for range 20 {
			b.push(1)
			<-b.waker.heard
			b.is(Locked)
			took := b.woken()
			require.GreaterOrEqual(t, took, LockPark)
			require.LessOrEqual(t, took, LockPark+LockJitter+WakeTick)
			require.Equal(t, ready, b.stateOf("p"))
			b.is(Nothing)
			time.Sleep(time.Second)
		}
	})
}

func TestRule14AckFreesALaneAtOnce(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		b.push(1)
		<-b.waker.heard
		b.taken(8)
		time.Sleep(50 * time.Millisecond)
		b.acked()
		require.Zero(t, b.woken())
		require.Equal(t, ready, b.stateOf("p"))
		b.taken(9)
		b.back() // a lease that failed
		require.Zero(t, b.woken())
		require.Equal(t, ready, b.stateOf("p"))
	})
}

func TestIdleQueueWakesAtOnceAndABusyOneOncePerTick(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		b.push(1)
		require.Zero(t, b.woken())
		b.waker.take()
		for range 1000 {
			b.push(1)
		}
		require.Empty(t, b.waker.take())
		require.Equal(t, WakeTick, b.woken())
		require.Equal(t, []string{"p"}, b.waker.take())
		// 100 messages a millisecond for a second.
		for range 1000 {
			for range 100 {
				b.push(1)
			}
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, len(b.waker.take()), int(time.Second/WakeTick)+2)
		time.Sleep(time.Second)
		b.waker.take()
		for _, lane := range names(foldMax + 2) {
			b.Pushed(tenant, "q", lane, 1)
		}
		time.Sleep(2 * WakeTick)
		require.Equal(t, []string{"lane-000000", ""}, b.waker.take(), "too many to name: everybody looks")
	})
}

func TestMarkWakesAtOnce(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	b.push(1)
	b.waker.take()
	b.Mark(tenant, "q", "a", 1)
	b.MarkGroup(tenant, "q", "b", "g")
	b.Mark(tenant, "q", "", 1)
	require.Equal(t, []string{"a", "b", ""}, b.waker.take())
	b.Pushed(tenant, "unknown", "p", 1)
	require.Equal(t, []string{"p"}, b.waker.take(), "pops of one partition wait there without a ring")
}

func TestReturnedLanesWakeAnotherPop(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(b *bench, c *Checkout){
		"not come to": func(_ *bench, c *Checkout) { c.Return(nil) },
		"abandoned":   func(_ *bench, c *Checkout) { c.Abandon() },
		"more left":   func(_ *bench, c *Checkout) { c.Return([]Verdict{autoAckedTo(3)}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, plain)
			b.push(1)
			c := b.take(1)
			b.pass(time.Second)
			b.waker.take()
			give(b, c)
			require.Equal(t, []string{"p"}, b.waker.take())
			c.Return([]Verdict{verdictOf(b, Nothing)})
			c.Abandon()
			require.Equal(t, ready, b.stateOf("p"), "only the first call counts")
		})
	}
}

func TestCheckoutIsFairAndStopsWhenTheBatchIsCovered(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Shards: 1})
	b.reseed()
	for _, lane := range []string{"a", "b", "c", "d"} {
		b.Pushed(tenant, "q", lane, 10)
		b.advance(time.Millisecond)
	}
	c, _ := b.Checkout(tenant, "q", "g", 64, 20)
	require.Equal(t, []string{"a", "b"}, c.Partitions())
	c.Return([]Verdict{{Partition: "a", Kind: TookAutoAck, BatchEnd: 1, LastOffset: 2}})
	c, _ = b.Checkout(tenant, "q", "g", 3, 1<<20)
	require.Equal(t, []string{"b", "c", "d"}, c.Partitions(), "what was not come to keeps its place, what was served is last")
	c.Abandon()
	lanes, _ := b.ask()
	require.Equal(t, []string{"a", "b", "c", "d"}, lanes, "what was abandoned is behind the others")
	age, n := b.Age(tenant, "q", "g")
	require.Zero(t, age)
	require.Equal(t, 4, n)
	b.advance(time.Second)
	age, _ = b.Age(tenant, "q", "g")
	require.Equal(t, time.Second, age)
	age, n = b.Oldest()
	require.Equal(t, time.Second, age)
	require.Equal(t, 4, n)
	b.advance(time.Hour)
	_, n = b.Oldest()
	require.Zero(t, n, "nobody asks for them")
	for range 20 {
		c := b.take(1)
		require.Len(t, c.Partitions(), 1)
		c.Abandon()
	}
}

func TestRunLeavesNothingBehindAndReports(t *testing.T) {
	t.Parallel()
	live(t, Config{IdleSweep: time.Minute}, func(t *testing.T, b *bench) {
		require.NoError(t, b.Reseed(t.Context(), tenant, "other", "g"))
		for range 200 {
			b.ask()
			time.Sleep(time.Second)
		}
		passes, _, _ := b.tally.take()
		require.LessOrEqual(t, passes, 2, "reported and begun anew")
		require.Nil(t, b.queue(tenant, "other"), "swept")
		b.Changed(tenant, "q")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.NotZero(t, b.queueOf().options().read, "read again at once")
	})
}

// waitFor checks out, after a while of waiting when the ring is empty.
func waitFor(hub *wake.Hub, l *List) (*Checkout, State) {
	woken := make(chan struct{}, 1)
	w := hub.Register(wake.Topic{Tenant: tenant, Queue: "q", Class: "g"}, wake.Func(func() { woken <- struct{}{} }))
	defer w.Close()
	c, state := l.Checkout(tenant, "q", "g", 4, 10)
	if state != Empty || w.Rest() {
		return c, state
	}
	select {
	case <-woken:
	case <-time.After(20 * time.Millisecond):
	}
	return l.Checkout(tenant, "q", "g", 4, 10)
}

// TestPushersAndPoppersInParallel has pops consume everything while they wait on the
// real hub, with sweeps, walks and lost check-ins going on.
func TestPushersAndPoppersInParallel(t *testing.T) {
	t.Parallel()
	const pushers, poppers, perPusher, lanes = 4, 4, 500, 40
	hub := wake.NewHub()
	defer hub.Close()
	db := &sharedDatabase{left: map[string]int{}}
	l, err := New(Config{IdleSweep: 20 * time.Millisecond, Reseed: time.Second}, Deps{Store: db, Waker: hub, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var background, work sync.WaitGroup
	background.Go(func() { _ = l.Run(ctx) })
	require.NoError(t, l.Reseed(ctx, tenant, "q", "g"))
	var taken atomic.Int64
	for i := range poppers {
		work.Go(func() {
			for n := 0; taken.Load() < pushers*perPusher; n++ {
				c, state := waitFor(hub, l)
				if state != Served {
					if state != Empty {
						_ = l.Reseed(ctx, tenant, "q", "g")
						continue
					}
					continue
				}
				if (n+i)%7 == 0 {
					c.Abandon()
					continue
				}
				vs := db.claim(c.Partitions())
				for _, v := range vs {
					taken.Add(v.BatchEnd)
				}
				c.Return(vs)
			}
		})
	}
	for i := range pushers {
		work.Go(func() {
			for n := range perPusher {
				lane := fmt.Sprint((n*7 + i) % lanes)
				db.push(lane)
				switch n % 3 {
				case 0:
					l.Pushed(tenant, "q", lane, 1)
				case 1:
					l.Mark(tenant, "q", lane, 1)
				default:
					l.Pushed(tenant, "q", lane, 1)
					l.Promote(idOf(lane), "g")
					l.Changed(tenant, "q")
				}
			}
		})
	}
	work.Wait()
	cancel()
	background.Wait()
	require.EqualValues(t, pushers*perPusher, taken.Load())
}

// sharedDatabase counts what is left in each lane of one queue.
type sharedDatabase struct {
	mu   sync.Mutex
	left map[string]int
}

func (d *sharedDatabase) push(lane string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left[lane]++
}

// claim takes up to three messages of each lane.
func (d *sharedDatabase) claim(lanes []string) (vs []Verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, lane := range lanes {
		v := Verdict{Partition: lane, PartitionID: idOf(lane), Kind: Nothing}
		if n := min(3, d.left[lane]); n > 0 {
			v.Kind, v.BatchEnd, v.LastOffset = TookAutoAck, int64(n), int64(d.left[lane])
			d.left[lane] -= n
		}
		vs = append(vs, v)
	}
	return vs
}

func (d *sharedDatabase) pending() (refs []store.PartitionRef) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for lane, n := range d.left {
		if n > 0 {
			refs = append(refs, store.PartitionRef{ID: idOf(lane), Name: lane})
		}
	}
	return refs
}

func (d *sharedDatabase) QueueSettings(context.Context, uuid.UUID, string) (store.QueueSettings, bool, error) {
	return store.QueueSettings{}, true, nil
}

func (d *sharedDatabase) HotlistReseed(context.Context, uuid.UUID, string, string, uuid.UUID, int) ([]store.PartitionRef, error) {
	return d.pending(), nil
}

func (d *sharedDatabase) HotlistRecent(context.Context, []store.HotlistRing, time.Duration, int) ([]store.HotlistRow, error) {
	return nil, nil
}

// Somebody who knows that it is worth it need not wait for the watch.
func TestALookFindsWhatTheWatchWould(t *testing.T) {
	t.Parallel()
	live(t, Config{}, func(t *testing.T, b *bench) {
		time.Sleep(10 * time.Second)
		require.NoError(t, b.Look(t.Context()))
		b.store.mu.Lock()
		b.store.recent["q/g"] = []store.PartitionRef{{ID: idOf("p"), Name: "p"}}
		b.store.mu.Unlock()
		_, state := b.ask()
		require.Equal(t, Empty, state)
		began := time.Now()
		require.NoError(t, b.Look(t.Context()))
		<-b.waker.heard
		_, state = b.ask()
		require.Equal(t, Served, state)
		require.Equal(t, began, time.Now())
	})
	require.NoError(t, (*List)(nil).Look(t.Context()))
}
