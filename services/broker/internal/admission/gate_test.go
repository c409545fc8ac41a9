package admission_test

import (
	"context"
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

func TestWaitingEndsAtTheBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 4, Reserved: 1})
		hold(t, g, admission.Push, 2) // one slot each is kept for pop and ack
		start := time.Now()
		_, err := g.Acquire(t.Context(), admission.Push)
		require.ErrorIs(t, err, admission.ErrOverloaded)
		require.Equal(t, admission.MaxWaitDefault, time.Since(start))
	})
}

func TestTooManyWaitersAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 4, Reserved: 1, MaxWaiting: 1})
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

func TestClassesKeepTheirReserve(t *testing.T) {
	t.Parallel()
	g := setup(t, admission.Config{Slots: 8, Reserved: 2})
	hold(t, g, admission.Push, 4)
	hold(t, g, admission.Pop, 2)
	hold(t, g, admission.Ack, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := g.Acquire(ctx, admission.Ack)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAcksAreServedBeforePopsBeforePushes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := setup(t, admission.Config{Slots: 1})
		held := hold(t, g, admission.Push, 1)
		served := make(chan string, 4)
		enqueue(t, g, admission.Push, "push", served)
		enqueue(t, g, admission.Pop, "pop 1", served)
		enqueue(t, g, admission.Pop, "pop 2", served)
		enqueue(t, g, admission.Ack, "ack", served)
		held[0]()
		for _, want := range []string{"ack", "pop 1", "pop 2", "push"} {
			require.Equal(t, want, <-served)
		}
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
	for _, cfg := range []admission.Config{{Slots: -1}, {Slots: 4, Reserved: 2}} {
		_, err := admission.New(cfg, noop.Meter{})
		require.Error(t, err)
	}
}
