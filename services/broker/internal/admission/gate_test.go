package admission_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/services/broker/internal/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T, cfg admission.Config) *admission.Gate {
	t.Helper()
	g, err := admission.New(cfg, noop.Meter{})
	require.NoError(t, err)
	return g
}

// hold takes n slots and returns their releases.
func hold(t *testing.T, g *admission.Gate, c admission.Class, n int) []func() {
	t.Helper()
	releases := make([]func(), n)
	for i := range releases {
		var err error
		releases[i], err = g.Acquire(t.Context(), c)
		require.NoError(t, err)
	}
	return releases
}

// enqueue starts a request that waits for a slot, reports under name when it
// got it, and gives it back.
func enqueue(t *testing.T, g *admission.Gate, c admission.Class, name string, served chan<- string) {
	t.Helper()
	go func() {
		release, err := g.Acquire(t.Context(), c)
		if err != nil {
			served <- name + ": " + err.Error()
			return
		}
		served <- name
		release()
	}()
	synctest.Wait()
}

func TestRule15NobodyQueuesForMoreThanTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 2})
		hold(t, g, admission.Push, 2)
		start := time.Now()
		_, err := g.Acquire(t.Context(), admission.Push)
		require.ErrorIs(t, err, admission.ErrOverloaded)
		require.Equal(t, admission.MaxWaitDefault, time.Since(start))
	})
}

func TestTooManyWaitersAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 2, MaxWaiting: 1})
		held := hold(t, g, admission.Push, 2)
		served := make(chan string, 1)
		enqueue(t, g, admission.Push, "first", served)
		start := time.Now()
		_, err := g.Acquire(t.Context(), admission.Push)
		require.ErrorIs(t, err, admission.ErrOverloaded)
		require.Zero(t, time.Since(start))
		held[0]()
		require.Equal(t, "first", <-served)
	})
}

func TestOneClassMayTakeTheWholeBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 8})
		held := hold(t, g, admission.Pop, 8)
		served := make(chan string, 1)
		enqueue(t, g, admission.Ack, "ack", served)
		require.Empty(t, served)
		held[0]()
		require.Equal(t, "ack", <-served)
	})
}

func TestAcksAreServedBeforePopsBeforePushesBeforeMaintenance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 1})
		held := hold(t, g, admission.Push, 1)
		served := make(chan string, 4)
		enqueue(t, g, admission.Maint, "maint", served)
		enqueue(t, g, admission.Push, "push", served)
		enqueue(t, g, admission.Pop, "pop", served)
		enqueue(t, g, admission.Ack, "ack", served)
		held[0]()
		for _, want := range []string{"ack", "pop", "push", "maint"} {
			require.Equal(t, want, <-served)
		}
	})
}

func TestClassesBelowTheirShareAreServedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 10, Min: 10})
		acks := hold(t, g, admission.Ack, 8) // their share is 3
		hold(t, g, admission.Pop, 2)         // 4
		served := make(chan string, 4)
		enqueue(t, g, admission.Ack, "ack", served)
		enqueue(t, g, admission.Push, "push", served)
		enqueue(t, g, admission.Pop, "pop", served)
		acks[0]() // each hands it on
		for _, want := range []string{"pop", "push", "ack"} {
			require.Equal(t, want, <-served)
		}
	})
}

// load keeps n requests of each class waiting or at work, each for a
// millisecond, and counts those that were served.
func load(t *testing.T, g *admission.Gate, n int, duration time.Duration) map[admission.Class]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	served := map[admission.Class]int{}
	for _, c := range []admission.Class{admission.Push, admission.Pop, admission.Ack, admission.Maint} {
		for range n {
			wg.Go(func() {
				for {
					release, err := g.Acquire(ctx, c)
					if err != nil {
						return
					}
					time.Sleep(time.Millisecond)
					release()
					mu.Lock()
					served[c]++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return served
}

// A small pool leaves one or two slots, of which no share makes a whole one.
func TestNoClassStarvesWhateverTheBudget(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 2, 3, 21} {
		synctest.Test(t, func(t *testing.T) {
			g := setup(t, admission.Config{Slots: slots, Min: slots})
			served := load(t, g, 25, time.Second)
			total := float64(served[admission.Push] + served[admission.Pop] + served[admission.Ack] + served[admission.Maint])
			require.InDelta(t, float64(1000*slots), total, float64(50*slots))
			for c, share := range map[admission.Class]float64{admission.Push: 0.25, admission.Pop: 0.40, admission.Ack: 0.30, admission.Maint: 0.05} {
				require.InDelta(t, share, float64(served[c])/total, 0.05, "%s of %d", c, slots)
			}
		})
	}
}

func TestAClassWithoutAShareIsServedLastButServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 1, Shares: admission.Shares{Push: 1}})
		served := load(t, g, 5, 4*time.Second)
		require.Greater(t, served[admission.Push], 3500)
		for _, c := range []admission.Class{admission.Pop, admission.Ack, admission.Maint} {
			require.Positive(t, served[c], c)
		}
	})
}

func TestRequestsThatShareATransactionAreCountedWithTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 1, MaxWaiting: 3})
		leave, err := g.Enter(t.Context(), admission.Push)
		require.NoError(t, err)
		_, err = g.Enter(t.Context(), admission.Push)
		require.NoError(t, err)
		held := hold(t, g, admission.Push, 1)
		served := make(chan string, 1)
		enqueue(t, g, admission.Push, "third", served)
		for range 2 {
			_, err = g.Enter(t.Context(), admission.Push)
			require.ErrorIs(t, err, admission.ErrOverloaded)
			_, err = g.Acquire(t.Context(), admission.Push)
			require.ErrorIs(t, err, admission.ErrOverloaded)
		}
		_, err = g.Enter(t.Context(), admission.Ack)
		require.NoError(t, err, "every class has its own bound")
		leave()
		_, err = g.Enter(t.Context(), admission.Push)
		require.NoError(t, err)
		held[0]()
		require.Equal(t, "third", <-served)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = g.Enter(ctx, admission.Push)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, admission.MaxWaitDefault, g.MaxWait())
	})
}

func TestGivingUpLeavesTheQueueAndTheSlotToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 1})
		held := hold(t, g, admission.Push, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := g.Acquire(ctx, admission.Ack)
			gone <- err
		}()
		synctest.Wait()
		served := make(chan string, 1)
		enqueue(t, g, admission.Push, "push", served)
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		held[0]()
		require.Equal(t, "push", <-served)
		hold(t, g, admission.Pop, 1)
	})
}

func TestImpossibleSizesAreRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []admission.Config{{Slots: -1}, {MaxWaiting: -1}, {MaxWait: -1}, {Min: -1}, {Init: -1}, {Max: -1}, {NoSync: -1}, {Tick: -1}, {TrainGap: -1}} {
		_, err := admission.New(cfg, noop.Meter{})
		require.Error(t, err)
	}
}
