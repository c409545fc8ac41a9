package pop_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

type answer struct {
	body []byte
	err  error
	took time.Duration
}

// start runs a pop in the background and lets it come to rest.
func (b *bundle) start(ctx context.Context, req pop.Request) <-chan answer {
	out := make(chan answer, 1)
	begin := time.Now()
	go func() {
		body, err := b.svc.Pop(ctx, req)
		out <- answer{body, err, time.Since(begin)}
	}()
	synctest.Wait()
	return out
}

func TestEmptyLongPollTakesItsTimeout(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]time.Duration{
		0:                       0,
		1500 * time.Millisecond: 1500 * time.Millisecond,
		30 * time.Second:        29750 * time.Millisecond,
	} {
		t.Run(timeout.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, pop.Config{})
				a := <-b.start(t.Context(), wildcard(query(true, timeout)))
				require.NoError(t, a.err)
				require.Nil(t, a.body)
				require.Equal(t, want, a.took)
			})
		})
	}
}

func TestReChecksBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		<-b.start(t.Context(), wildcard(query(true, 5*time.Second)))
		require.Equal(t, 1, b.store.count("wildcard"), "the first look is a claim; the probe says that no other is worth it")
		var gaps []int64
		for i := 1; i < len(b.store.calls); i++ {
			gaps = append(gaps, b.store.calls[i].at.Sub(b.store.calls[i-1].at).Milliseconds())
		}
		require.Equal(t, []int64{100, 100, 100, 800, 1000, 1000, 1000}, gaps)
	})
}

func TestAWakeIsServedAtOnce(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]pop.Request{
		"wildcard": wildcard(query(true, 10*time.Second)),
		"specific": {Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: "p", Query: query(true, 10*time.Second)},
		"discover": {Tenant: tenant, Route: pop.Discover, Query: query(true, 10*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, pop.Config{PendingGate: true})
				out := b.start(t.Context(), req)
				time.Sleep(4 * time.Second)
				b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
				b.hub.Wake(tenant, "q", "p")
				a := <-out
				require.NoError(t, a.err)
				require.Len(t, decode(t, a.body).Messages, 1)
				require.Equal(t, 4*time.Second, a.took)
				b.svc.Close()
			})
		})
	}
}

func TestMessagesThatOnlyTimeMakesVisibleAreFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
		b.store.due = time.Now().Add(2500 * time.Millisecond)
		a := <-b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		require.NotNil(t, a.body)
		require.LessOrEqual(t, a.took, 3500*time.Millisecond)
	})
}

func TestPendingGateCanBeSwitchedOffExceptForWildcard(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]pop.Request{
		"specific": {Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: "p", Query: query(true, time.Second)},
		"discover": {Tenant: tenant, Route: pop.Discover, Query: query(true, time.Second)},
		"wildcard": wildcard(query(true, time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				off := setup(t, pop.Config{})
				<-off.start(t.Context(), req)
				if name == "wildcard" {
					require.Positive(t, off.store.count("pending"))
					require.Equal(t, 1, off.store.count(name))
					return
				}
				require.Zero(t, off.store.count("pending"))
				require.Greater(t, off.store.count(name), 1)
				on := setup(t, pop.Config{PendingGate: true})
				<-on.start(t.Context(), req)
				require.Positive(t, on.store.count("pending"))
				require.Equal(t, 1, on.store.count(name))
			})
		})
	}
}

func TestALeavingClientEndsItsPopAndHoldsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		out := b.start(ctx, wildcard(query(true, 10*time.Second)))
		for range 2 { // parked pops hold no slot
			release, err := b.gate.Acquire(t.Context(), admission.Pop)
			require.NoError(t, err)
			defer release()
		}
		cancel()
		a := <-out
		require.ErrorIs(t, a.err, context.Canceled)
		require.Zero(t, a.took)
		require.Equal(t, 1, b.store.count("wildcard"))
	})
}

func TestAWakeInVainResetsTheBackOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		out := b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		time.Sleep(5500 * time.Millisecond)
		before := b.store.total()
		b.hub.Wake(tenant, "q", "p")
		time.Sleep(350 * time.Millisecond)
		require.Equal(t, before+4, b.store.total(), "at once, then every 100 ms")
		b.svc.Close()
		<-out
	})
}

func TestCloseAnswersParkedPopsEmpty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		out := b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		time.Sleep(time.Second)
		b.svc.Close()
		a := <-out
		require.NoError(t, a.err)
		require.Nil(t, a.body)
		require.Equal(t, time.Second, a.took)

		a = <-b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		require.Zero(t, a.took, "later ones do not park")
	})
}

func TestWakeOfALeavingClientServesAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		first := b.start(ctx, wildcard(query(true, 20*time.Second)))
		second := b.start(t.Context(), wildcard(query(true, 20*time.Second)))
		time.Sleep(5 * time.Second)
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
		cancel()
		b.hub.Wake(tenant, "q", "p")
		a := <-first
		require.ErrorIs(t, a.err, context.Canceled)
		a = <-second
		require.NotNil(t, a.body)
		require.Equal(t, 5*time.Second, a.took)
		b.svc.Close()
	})
}

func TestManyParkedPopsShareTheirReChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pops = 200
		b := setup(t, pop.Config{})
		b.store.hidden = true // leased or delayed: the probe alone cannot help
		outs := make([]<-chan answer, 0, pops)
		for range pops {
			outs = append(outs, b.start(t.Context(), wildcard(query(true, 15*time.Second))))
			time.Sleep(5 * time.Millisecond)
		}
		b.store.mu.Lock()
		b.store.calls = nil
		b.store.mu.Unlock()
		time.Sleep(10 * time.Second)
		looks := b.store.count("wildcard")
		require.Less(t, looks, 60, "of %d parked pops in ten seconds", pops)
		require.Greater(t, looks, 7)
		for _, out := range outs {
			require.NoError(t, (<-out).err)
		}
	})
}

func TestOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{MaxParked: 1})
		parked := b.start(t.Context(), wildcard(query(true, 15*time.Second)))
		a := <-b.start(t.Context(), wildcard(query(true, 15*time.Second)))
		require.ErrorIs(t, a.err, pop.ErrOverloaded)

		releases := make([]func(), 0, 2)
		for range 2 {
			release, err := b.gate.Acquire(t.Context(), admission.Pop)
			require.NoError(t, err)
			releases = append(releases, release)
		}
		a = <-b.start(t.Context(), wildcard(query(false, 0)))
		require.ErrorIs(t, a.err, pop.ErrOverloaded)
		require.Equal(t, admission.MaxWaitDefault, a.took)
		require.Equal(t, 1, b.store.count("wildcard"))

		// The parked one only misses re-checks.
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
		for _, release := range releases {
			release()
		}
		a = <-parked
		require.NoError(t, a.err)
		require.NotNil(t, a.body)
	})
}

func TestMinPopWaitHoldsTheClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		b.store.minWait = 300
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1", "2")}, []store.Popped{b.claimOf(t, "p", 0, "3", "4")},
			[]store.Popped{b.claimOf(t, "p", 0, "5")}, []store.Popped{b.claimOf(t, "p", 0, "6", "7")})
		q := query(true, 10*time.Second)
		q.Batch = 2
		for _, want := range []time.Duration{
			0, // a full batch is there
			0,
			300 * time.Millisecond, // one message short
			0,
		} {
			a := <-b.start(t.Context(), wildcard(q))
			require.NotNil(t, a.body)
			require.Equal(t, want, a.took)
		}
		require.Equal(t, 1, b.store.settings, "the setting is remembered")

		// Neither one message at a time, nor without waiting, nor on other routes.
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")}, []store.Popped{b.claimOf(t, "p", 0, "1")}, []store.Popped{b.claimOf(t, "p", 0, "1")})
		one := q
		one.Batch = 1
		now := q
		now.Wait = false
		for _, req := range []pop.Request{
			wildcard(one), wildcard(now), {Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: "p", Query: q},
		} {
			a := <-b.start(t.Context(), req)
			require.NotNil(t, a.body)
			require.Zero(t, a.took)
		}
	})
}

func TestMinPopWaitEndsWhenTheBatchIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		b.store.minWait = 10_000
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
		out := b.start(t.Context(), wildcard(wire.PopQuery{Batch: 2, Wait: true, Timeout: 30 * time.Second, Group: "g"}))
		time.Sleep(900 * time.Millisecond)
		synctest.Wait()
		require.Zero(t, b.store.count("wildcard"), "an under-full batch is not claimed")
		full := []store.Popped{b.claimOf(t, "p", 0, "1", "2")}
		b.store.mu.Lock()
		b.store.claims[0] = full
		b.store.mu.Unlock()
		a := <-out
		require.NotNil(t, a.body)
		require.Equal(t, time.Second, a.took)
	})
}

func TestMinPopWaitEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		b.store.minWait = 60_000
		b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
		a := <-b.start(t.Context(), wildcard(wire.PopQuery{Batch: 10, Wait: true, Timeout: 2 * time.Second, Group: "g"}))
		require.NotNil(t, a.body)
		require.Equal(t, 2*time.Second, a.took)
	})
}

func TestMinPopWaitDoesNotDelayTheFirstContactOfAGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, pop.Config{})
		b.store.minWait = 60_000
		out := b.start(t.Context(), wildcard(query(true, time.Second)))
		require.Equal(t, 1, b.store.count("wildcard"), "it registers although nothing is pending")
		<-out
	})
}
