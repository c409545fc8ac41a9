package pop_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// everyRoute are pops of every kind that wait for ten seconds.
func everyRoute() map[string]pop.Request {
	q := query(true, 10*time.Second)
	return map[string]pop.Request{
		"wildcard": wildcard(q),
		"specific": {Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: "p", Query: q},
		"discover": {Tenant: tenant, Route: pop.Discover, Query: q},
	}
}

func TestSuspendedPopsFindNothingAndAskNobody(t *testing.T) {
	t.Parallel()
	for name, req := range everyRoute() {
		for kind, setup := range map[string]func(testing.TB, pop.Config) *bundle{"plain": setup, "ring": setupRing, "fused": setupFused} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := setup(t, pop.Config{})
					b.svc.Suspended = func() bool { return true }
					b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
					before := len(b.store.calls)
					for _, wait := range []bool{true, false} {
						req.Query.Wait = wait
						a := <-b.start(t.Context(), req)
						require.NoError(t, a.err)
						require.Nil(t, a.body)
						require.Zero(t, a.took)
					}
					require.Len(t, b.store.calls, before)
					require.Zero(t, b.svc.Waiting())
				})
			})
		}
	}
}

func TestWaitingPopsEndWhenTheyAreSuspended(t *testing.T) {
	t.Parallel()
	for name, req := range everyRoute() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, pop.Config{})
				var suspended atomic.Bool
				b.svc.Suspended = suspended.Load
				outs := []<-chan answer{b.start(t.Context(), req), b.start(t.Context(), req)}
				time.Sleep(2 * time.Second)
				suspended.Store(true)
				b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
				b.hub.Rouse()
				for _, out := range outs {
					a := <-out
					require.NoError(t, a.err)
					require.Nil(t, a.body)
					require.Equal(t, 2*time.Second, a.took)
				}
				suspended.Store(false)
				a := <-b.start(t.Context(), req)
				require.Len(t, decode(t, a.body).Messages, 1, "and goes on afterwards")
			})
		})
	}
}

// A pop that has the batch gather, without a slot, is told too.
func TestGatheringPopEndsWhenItIsSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		var suspended atomic.Bool
		b.svc.Suspended = suspended.Load
		b.store.minWait = 8000
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		out := b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		time.Sleep(2 * time.Second)
		suspended.Store(true)
		b.hub.Rouse()
		a := <-out
		require.NoError(t, a.err)
		require.Nil(t, a.body)
		require.InDelta(t, 2, a.took.Seconds(), 0.3)
	})
}
