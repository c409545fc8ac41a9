package wake_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/wake"
)

var tenant = uuid.UUID{15: 1}

func topic(queue, partition, class string) wake.Topic {
	return wake.Topic{Tenant: tenant, Queue: queue, Partition: partition, Class: class}
}

// waiter is a registered waiter that counts its wakes.
type waiter struct {
	*wake.Waiter
	tokens chan struct{}
}

// Register adds an idle waiter.
func idle(h *wake.Hub, t wake.Topic) *waiter {
	w := &waiter{tokens: make(chan struct{}, 16)}
	w.Waiter = h.Register(t, wake.Func(func() { w.tokens <- struct{}{} }))
	w.Rest()
	return w
}

// woken takes the token of a waiter, if it has one.
func woken(w *waiter) bool {
	select {
	case <-w.tokens:
		return true
	default:
		return false
	}
}

func count(ws []*waiter) (n int) {
	for _, w := range ws {
		if woken(w) {
			n++
		}
	}
	return n
}

func register(h *wake.Hub, n int, t wake.Topic) []*waiter {
	ws := make([]*waiter, n)
	for i := range ws {
		ws[i] = idle(h, t)
	}
	return ws
}

func TestOneLaneWakesOneWaiterOfEveryClass(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	a := register(h, 3, topic("q", "", "a"))
	b := register(h, 3, topic("q", "", "b"))
	mine := register(h, 2, topic("q", "p1", "a"))
	other := register(h, 2, topic("q", "p2", "a"))
	elsewhere := register(h, 2, topic("r", "", "a"))

	h.Wake(tenant, "q", "p1")
	require.True(t, woken(a[0]), "the longest waiting is first")
	require.Equal(t, 0, count(a[1:]))
	require.Equal(t, 1, count(b))
	require.Equal(t, 1, count(mine))
	require.Equal(t, 0, count(other))
	require.Equal(t, 0, count(elsewhere))

	h.Wake(tenant, "q", "p2")
	require.Equal(t, 1, count(a))
	require.Equal(t, 1, count(other))
}

func TestUnknownLaneWakesOneOfEveryClassAndEachThatFindsWorkTheNext(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	ws := register(h, 3, topic("q", "", "a"))
	lane := register(h, 2, topic("q", "p", "a"))
	h.Wake(tenant, "q", "")
	require.Equal(t, 1, count(lane))
	for i := range ws {
		require.True(t, woken(ws[i]))
		require.Equal(t, wake.Wide, ws[i].Begin())
		require.Zero(t, count(ws))
		if i < 2 {
			ws[i].Served()
		}
	}
	require.False(t, ws[2].Rest())
	require.Zero(t, count(ws[:2]), "the last one found nothing")
}

func TestAWaiterThatWillNotTakeAllPassesItOn(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	ws := register(h, 3, topic("q", "", "a"))
	lane := idle(h, topic("q", "p", "a"))
	h.Wake(tenant, "q", "x")
	require.True(t, woken(ws[0]))
	ws[0].Pass()
	require.Equal(t, 1, count(ws))
	require.False(t, woken(lane))
}

func TestFoundWakesOneOfItsTopic(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	all := map[wake.Topic][]*waiter{}
	for _, tp := range []wake.Topic{topic("q", "", "a"), topic("q", "p", "a"), topic("q", "", "b"), topic("", "", "a")} {
		all[tp] = register(h, 2, tp)
	}
	for tp, ws := range all {
		h.Found(tp)
		require.Equal(t, 1, count(ws))
		for _, others := range all {
			require.Zero(t, count(others))
		}
	}
	h.Found(topic("nowhere", "", "a"))
	h.Found(topic("q", "other", "a"))
}

func TestDiscoveryHearsOfEveryQueueOfItsTenantOnly(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	mine := register(h, 2, topic("", "", "g/ns"))
	foreign := idle(h, wake.Topic{Tenant: uuid.UUID{1}, Class: "g/ns"})
	h.Wake(tenant, "q", "p")
	h.Wake(tenant, "r", "p") // same partition name, another lane
	require.Equal(t, 2, count(mine))
	require.False(t, woken(foreign))
}

func TestRepeatedWakesOfALaneFoldIntoTheNextTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := wake.NewHub()
		ws := register(h, 5, topic("q", "", "a"))
		for range 100 {
			h.Wake(tenant, "q", "p")
		}
		require.Equal(t, 1, count(ws))
		time.Sleep(wake.Tick)
		synctest.Wait()
		require.Equal(t, 1, count(ws))
		time.Sleep(10 * wake.Tick)
		synctest.Wait()
		require.Equal(t, 0, count(ws), "the lane stayed quiet")
	})
}

func TestAnnouncementDuringALookIsNotMissed(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	w := h.Register(topic("q", "", "a"), wake.Func(func() { t.Error("notified while busy") }))
	require.Zero(t, w.Begin())
	h.Wake(tenant, "q", "p")
	require.True(t, w.Rest())
	require.Equal(t, wake.Lane, w.Begin())
	require.False(t, w.Rest())
	w.Close()
}

func TestWakesThatFindAllBusyAreSharedAmongThem(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	ws := register(h, 4, topic("q", "", "a"))
	for i := range 3 { // ws[3] stays idle
		h.Wake(tenant, "q", fmt.Sprint(i))
		require.True(t, woken(ws[i]))
	}
	h.Wake(tenant, "q", "3")
	require.True(t, woken(ws[3]))
	h.Wake(tenant, "q", "4")
	h.Wake(tenant, "q", "")
	require.Zero(t, count(ws))
	require.True(t, ws[0].Rest())
	require.True(t, ws[1].Rest())
	require.False(t, ws[2].Rest(), "two came, two look again")
}

func TestWakeOfALeavingWaiterGoesToTheNext(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*waiter){
		"token not taken":    func(w *waiter) { w.Close() },
		"look not completed": func(w *waiter) { w.Begin(); w.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := wake.NewHub()
			defer h.Close()
			ws := register(h, 2, topic("q", "", "a"))
			h.Wake(tenant, "q", "p")
			leave(ws[0])
			require.True(t, woken(ws[1]))
			require.Equal(t, wake.Lane, ws[1].Begin())
		})
	}
}

func TestAnsweredWakeIsNotPassedOn(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*waiter){
		"served": func(w *waiter) { w.Served() },
		"empty":  func(w *waiter) { w.Rest() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := wake.NewHub()
			defer h.Close()
			ws := register(h, 2, topic("q", "", "a"))
			h.Wake(tenant, "q", "p")
			require.True(t, woken(ws[0]))
			ws[0].Begin()
			answer(ws[0])
			ws[0].Close()
			require.False(t, woken(ws[1]))
		})
	}
}

func TestCloseEndsEveryWait(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	ws := append(register(h, 3, topic("q", "", "a")), register(h, 2, topic("q", "p", "a"))...)
	h.Close()
	h.Close()
	<-h.Done()
	require.Equal(t, 5, count(ws))
	require.True(t, ws[0].Rest(), "none rests any more")
	h.Wake(tenant, "q", "p")
	h.Found(topic("q", "", "a"))
	require.Zero(t, count(ws))
	late := h.Register(topic("q", "", "a"), wake.Func(func() {}))
	require.True(t, late.Rest())
	late.Close()
}

func TestRouseReachesIdleAndBusyWaiters(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	ws := append(register(h, 3, topic("q", "", "a")), register(h, 2, topic("q", "p", "a"))...)
	ws = append(ws, idle(h, topic("", "", "a")))
	busy := h.Register(topic("q", "", "a"), wake.Func(func() { t.Error("woken although it looks") }))
	h.Rouse()
	require.Equal(t, 6, count(ws))
	require.True(t, busy.Rest(), "it may have looked before")
	for _, w := range append(ws, &waiter{Waiter: busy}) {
		w.Close()
	}
	late := idle(h, topic("q", "", "a"))
	require.False(t, woken(late), "what was said before concerns nobody who comes later")
	late.Close()
}

// Every announced unit of work must be found although waiters come and go: each
// of the workers looks only when it was woken.
func TestNoWakeIsLostAmongBusyAndLeavingWaiters(t *testing.T) {
	t.Parallel()
	const units, workers = 2000, 8
	h := wake.NewHub()
	var available, taken atomic.Int64
	take := func() bool {
		for {
			n := available.Load()
			if n == 0 {
				return false
			}
			if available.CompareAndSwap(n, n-1) {
				taken.Add(1)
				return true
			}
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for n := 0; ; n++ {
				tokens := make(chan struct{}, 1)
				w := h.Register(topic("q", "", "a"), wake.Func(func() { tokens <- struct{}{} }))
				for ; ; w.Begin() {
					if take() {
						w.Served()
						break
					}
					if w.Rest() {
						continue
					}
					select {
					case <-tokens:
					case <-done:
						w.Close()
						return
					}
					if n%7 == 0 {
						break // leaves with the wake in hand
					}
				}
				w.Close()
			}
		})
	}
	for i := range units {
		available.Add(1)
		h.Wake(tenant, "q", fmt.Sprint(i))
	}
	require.Eventually(t, func() bool { return taken.Load() == units }, 20*time.Second, time.Millisecond)
	close(done)
	wg.Wait()
	h.Close()
}

func BenchmarkWakeWithoutWaiters(b *testing.B) {
	b.ReportAllocs()
	h := wake.NewHub()
	for b.Loop() {
		h.Wake(tenant, "q", "p")
	}
}

func BenchmarkWakeAmongTenThousandWaiters(b *testing.B) {
	b.ReportAllocs()
	h := wake.NewHub()
	for i := range 10_000 {
		idle(h, topic("q", fmt.Sprint(i), "g"))
	}
	w := idle(h, topic("q", "", "g"))
	lanes := make([]string, 1024)
	for i := range lanes {
		lanes[i] = fmt.Sprint("lane", i)
	}
	i := 0
	for b.Loop() {
		h.Wake(tenant, "q", lanes[i%len(lanes)])
		i++
		if woken(w) {
			w.Rest()
		}
	}
	h.Close()
}

func TestAFreedLaneWakesOneOfItsGroupEveryTime(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	a, b := register(h, 3, topic("q", "", "a")), register(h, 3, topic("q", "", "b"))
	pinned := register(h, 3, topic("q", "p", "a"))
	all := register(h, 3, topic("", "", "a"))
	for i := range a {
		h.Free(tenant, "q", "a")
		require.True(t, woken(a[i]), "nothing is folded")
	}
	require.Zero(t, count(b))
	require.Zero(t, count(pinned))
	require.Zero(t, count(all))
	h.Free(tenant, "nowhere", "a")

	for i := range pinned {
		h.FreePinned(tenant, "q", "p", "a")
		require.True(t, woken(pinned[i]))
	}
	require.Equal(t, 1, count(all), "discovery wakes are folded")
	require.Zero(t, count(b))
	h.FreePinned(tenant, "q", "other", "a")
	require.Equal(t, 1, count(all))
	h.FreePinned(tenant, "", "p", "a")
	require.Equal(t, 1, count(all), "only the lane is known")
}

func TestSeizeTakesOneThatSuitsWithoutWakingIt(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	tp := topic("q", "", "a")
	yes := func(wake.Sleeper) bool { return true }
	require.Nil(t, h.Seize(tp, yes), "nobody is there")
	ws := register(h, 2, tp)
	require.Nil(t, h.Seize(tp, func(wake.Sleeper) bool { return false }))
	require.Nil(t, h.Seize(topic("q", "", "b"), yes))
	require.NotNil(t, h.Seize(tp, yes))
	require.Zero(t, count(ws))
	h.Found(tp)
	require.True(t, woken(ws[1]), "the first one is busy")
	require.Nil(t, h.Seize(tp, yes), "nobody is idle")

	h.Wake(tenant, "q", "p")
	require.True(t, ws[0].Rest(), "what came meanwhile is not lost")
	require.False(t, ws[0].Rest())
	ws[0].Close()
	ws[1].Close()
	idle(h, tp)
	h.Close()
	require.Nil(t, h.Seize(tp, yes), "closed")
}
