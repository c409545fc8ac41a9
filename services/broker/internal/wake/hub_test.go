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

// woken takes the token of a waiter, if it has one.
func woken(w *wake.Waiter) bool {
	select {
	case <-w.Ready():
		return true
	default:
		return false
	}
}

func count(ws []*wake.Waiter) (n int) {
	for _, w := range ws {
		if woken(w) {
			n++
		}
	}
	return n
}

func register(h *wake.Hub, n int, t wake.Topic) []*wake.Waiter {
	ws := make([]*wake.Waiter, n)
	for i := range ws {
		ws[i] = h.Register(t)
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

func TestUnknownLaneWakesEverybodyOfTheQueue(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	ws := append(register(h, 3, topic("q", "", "a")), register(h, 2, topic("q", "p", "a"))...)
	h.Wake(tenant, "q", "")
	require.Equal(t, 5, count(ws))
}

func TestDiscoveryHearsOfEveryQueueOfItsTenantOnly(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	defer h.Close()
	mine := register(h, 2, topic("", "", "g/ns"))
	foreign := h.Register(wake.Topic{Tenant: uuid.UUID{1}, Class: "g/ns"})
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
	w := h.Register(topic("q", "", "a"))
	look, byWake := w.Begin()
	require.False(t, byWake)
	h.Wake(tenant, "q", "p")
	w.Empty(look)
	require.True(t, woken(w))
	_, byWake = w.Begin()
	require.True(t, byWake)
}

func TestWakeOfALeavingWaiterGoesToTheNext(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*wake.Waiter){
		"token not taken":         func(w *wake.Waiter) { w.Close() },
		"token taken, no look":    func(w *wake.Waiter) { <-w.Ready(); w.Close() },
		"look not completed":      func(w *wake.Waiter) { <-w.Ready(); w.Begin(); w.Close() },
		"wake while being served": func(w *wake.Waiter) { w.Served(); w.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := wake.NewHub()
			defer h.Close()
			ws := register(h, 2, topic("q", "", "a"))
			h.Wake(tenant, "q", "p")
			leave(ws[0])
			require.True(t, woken(ws[1]))
		})
	}
}

func TestAnsweredWakeIsNotPassedOn(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(*wake.Waiter, wake.Look){
		"served": func(w *wake.Waiter, _ wake.Look) { w.Served() },
		"empty":  func(w *wake.Waiter, l wake.Look) { w.Empty(l) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := wake.NewHub()
			defer h.Close()
			ws := register(h, 2, topic("q", "", "a"))
			h.Wake(tenant, "q", "p")
			<-ws[0].Ready()
			look, _ := ws[0].Begin()
			answer(ws[0], look)
			ws[0].Close()
			require.False(t, woken(ws[1]))
		})
	}
}

func TestRedundantLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := wake.NewHub()
		ws := register(h, 2, topic("q", "", "a"))
		stranger := h.Register(topic("q", "", "b"))
		first, _ := ws[0].Begin()
		ws[0].Empty(first)
		time.Sleep(100 * time.Millisecond)

		look, _ := ws[1].Begin()
		require.True(t, ws[1].Redundant(look, 200*time.Millisecond))
		require.False(t, ws[1].Redundant(look, 100*time.Millisecond), "too old")
		other, _ := stranger.Begin()
		require.False(t, stranger.Redundant(other, time.Hour), "another group")

		h.Wake(tenant, "q", "p")
		look, _ = ws[1].Begin()
		require.False(t, ws[1].Redundant(look, time.Hour), "something was announced since")
		h.Close()
	})
}

func TestCloseEndsEveryWait(t *testing.T) {
	t.Parallel()
	h := wake.NewHub()
	h.Register(topic("q", "", "a"))
	h.Close()
	h.Close()
	<-h.Done()
	h.Wake(tenant, "q", "p")
	h.Register(topic("q", "", "a")).Close()
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
				w := h.Register(topic("q", "", "a"))
				for look, _ := w.Begin(); ; look, _ = w.Begin() {
					if take() {
						w.Served()
						break
					}
					w.Empty(look)
					select {
					case <-w.Ready():
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
		h.Register(topic("q", fmt.Sprint(i), "g"))
	}
	w := h.Register(topic("q", "", "g"))
	lanes := make([]string, 1024)
	for i := range lanes {
		lanes[i] = fmt.Sprint("lane", i)
	}
	i := 0
	for b.Loop() {
		h.Wake(tenant, "q", lanes[i%len(lanes)])
		i++
		select {
		case <-w.Ready():
			w.Begin()
		default:
		}
	}
	h.Close()
}
