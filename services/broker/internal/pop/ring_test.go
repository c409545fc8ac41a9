package pop_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// known has the ring of the group derived, so that it is warm.
func (b *bundle) known(t *testing.T, pending ...string) {
	t.Helper()
	for _, name := range pending {
		b.store.pending = append(b.store.pending, store.PartitionRef{ID: uuid.New(), Name: name})
	}
	require.NoError(t, b.list.Reseed(t.Context(), tenant, "q", "g"))
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.store.calls = nil
}

func (b *bundle) ready() int {
	_, n := b.list.Age(tenant, "q", "g")
	return n
}

func TestFirstContactSearchesAndDerivesTheRing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		b.store.pending = []store.PartitionRef{{ID: uuid.New(), Name: "b"}}
		body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.NoError(t, err)
		require.NotNil(t, body)
		synctest.Wait()
		require.Equal(t, 1, b.store.count("wildcard"))
		require.Positive(t, b.store.count("reseed"))
		require.Equal(t, 1, b.ready(), "what the walk has found")

		b.store.states = map[string]store.CandidateState{"b": {Partition: "b", State: store.StateEmpty}}
		_, err = b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.NoError(t, err)
		require.Equal(t, 1, b.store.count("wildcard"), "from now on the ring knows")
		require.Equal(t, [][]string{{"b"}}, b.store.listed)
	})
}

func TestCandidatesGoBackWithTheirVerdicts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t, "took", "empty", "leased", "locked", "unjudged")
		b.store.add([]store.Popped{b.claimOf(t, "took", 0, "1", "2")})
		b.store.lastOffset = 200 // there is more
		until := time.Now().Add(600 * time.Millisecond)
		b.store.states = map[string]store.CandidateState{
			"empty":  {Partition: "empty", State: store.StateEmpty},
			"leased": {Partition: "leased", State: store.StateLeased, Until: until},
			"locked": {Partition: "locked", State: store.StateLeased, Until: until, Locked: true},
		}
		q := query(false, 0)
		q.Partitions = 3
		body, err := b.svc.Pop(t.Context(), wildcard(q))
		require.NoError(t, err)
		require.Len(t, decode(t, body).Messages, 2)
		require.Len(t, b.store.listed[0], 5)
		require.Equal(t, 1, b.ready(), "the claim did not come to it")
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 2, b.ready(), "only its row was locked")
		time.Sleep(1100 * time.Millisecond)
		require.Equal(t, 4, b.ready(), "all but the empty one")
	})
}

func TestALookGoesOnBehindStaleCandidates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t, "a", "b", "c", "d", "e")
		b.store.states = make(map[string]store.CandidateState)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			b.store.states[name] = store.CandidateState{Partition: name, State: store.StateEmpty}
		}
		body, err := b.svc.Pop(t.Context(), wildcard(query(true, time.Second)))
		require.NoError(t, err)
		require.Nil(t, body)
		require.Equal(t, 3, b.store.count("list"), "two at a time")
		require.Zero(t, b.ready())
	})
}

func TestAnEmptyRingCostsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t)
		releases := b.exhaust(t) // not even a slot
		out := b.start(t.Context(), wildcard(query(true, 5*time.Second)))
		a := <-out
		require.NoError(t, a.err)
		require.Nil(t, a.body)
		require.Equal(t, 5*time.Second, a.took)
		require.Zero(t, b.store.total()-b.store.count("recent"))
		for _, release := range releases {
			release()
		}
	})
}

func TestRule11ParkedPopsShareOneQueryASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pops = 2000
		b := setupRing(t, pop.Config{})
		b.known(t)
		outs := make([]<-chan answer, pops)
		for i := range outs {
			outs[i] = b.start(t.Context(), wildcard(query(true, 15*time.Second)))
		}
		time.Sleep(9500 * time.Millisecond)
		synctest.Wait()
		require.LessOrEqual(t, b.store.count("recent"), 10)
		require.GreaterOrEqual(t, b.store.count("recent"), 9)
		require.Equal(t, b.store.total(), b.store.count("recent")+b.store.count("reseed"), "and no other")
		for _, out := range outs {
			require.NoError(t, (<-out).err)
		}
	})
}

func TestSpecificPopsShareTheirProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const pops = 100
		b := setupRing(t, pop.Config{PendingGate: true})
		outs := make([]<-chan answer, pops)
		req := pop.Request{Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: "p", Query: query(true, 15*time.Second)}
		for i := range outs {
			outs[i] = b.start(t.Context(), req)
		}
		require.Equal(t, pops, b.store.count("specific"), "their first looks")
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, b.store.total()-pops, 13)
		require.Equal(t, pops, b.store.count("specific"))
		for _, out := range outs {
			require.NoError(t, (<-out).err)
		}
	})
}

func TestAPopThatDoesNotWaitDoubtsAnEmptyRingOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t)
		now := func() []byte {
			body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
			require.NoError(t, err)
			return body
		}
		for range 5 {
			require.Nil(t, now())
		}
		require.Equal(t, 1, b.store.count("wildcard"))
		time.Sleep(time.Second)
		b.store.add([]store.Popped{b.claimOf(t, "nobody told of it", 0, "1")})
		require.NotNil(t, now())
		require.Equal(t, 2, b.store.count("wildcard"))
		require.Equal(t, 1, b.ready(), "its lease is looked after")
	})
}

func TestRule12AnUnregisteredGroupIsRegistered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t, "a", "b")
		b.store.unseeded = true
		b.store.states = map[string]store.CandidateState{
			"a": {Partition: "a", State: store.StateEmpty}, "b": {Partition: "b", State: store.StateEmpty},
		}
		body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.NoError(t, err)
		require.Nil(t, body)
		require.Equal(t, []int{1, 1}, []int{b.store.count("list"), b.store.count("wildcard")}, "at once")
		synctest.Wait()

		// What was claimed nevertheless is delivered; the next one registers.
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		body, err = b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.NoError(t, err)
		require.NotNil(t, body)
		require.Equal(t, []int{2, 1}, []int{b.store.count("list"), b.store.count("wildcard")})
		_, err = b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.NoError(t, err)
		require.Equal(t, 2, b.store.count("wildcard"))
	})
}

func TestAFailedClaimGivesItsCandidatesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t, "a", "b")
		b.store.errs = []error{errTimeout}
		_, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.ErrorIs(t, err, pop.ErrFailed)
		require.Equal(t, 2, b.ready())

		// So does one whose client leaves between two attempts.
		ctx, cancel := context.WithCancel(t.Context())
		b.store.errs, b.store.onClaim = []error{errAborted, errAborted}, cancel
		_, err = b.svc.Pop(ctx, wildcard(query(false, 0)))
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 2, b.ready())
	})
}

func TestAClientThatLeavesDuringALookEndsIt(t *testing.T) {
	t.Parallel()
	for name, pending := range map[string]bool{"that finds nothing": false, "that delivers": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupRing(t, pop.Config{})
				b.known(t)
				body, parked, err := b.svc.Begin(t.Context(), wildcard(query(true, 10*time.Second)))
				require.NoError(t, err)
				require.Nil(t, body)
				var got answer
				parked.Answer(func(body []byte, err error) { got = answer{body: body, err: err} })
				b.store.onClaim = parked.Cancel
				b.store.states = map[string]store.CandidateState{"a": {Partition: "a", State: store.StateEmpty}}
				if pending {
					b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
				}
				b.list.Pushed(tenant, "q", "a", 1)
				synctest.Wait()
				require.Equal(t, pending, got.body != nil)
				if !pending {
					require.ErrorIs(t, got.err, context.Canceled)
				}
				require.Zero(t, b.svc.Waiting())
			})
		})
	}
}

func TestCandidatesAreNotHeldInTheAdmissionQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t, "a")
		releases := b.exhaust(t)
		out := b.start(t.Context(), wildcard(query(false, 0)))
		require.Equal(t, 1, b.ready())
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		for _, release := range releases {
			release()
		}
		require.NotNil(t, (<-out).body)
	})
}

func TestAMarkWakesAsManyAsThereAreLanes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.known(t)
		outs := make([]<-chan answer, 10)
		for i := range outs {
			outs[i] = b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		}
		time.Sleep(3500 * time.Millisecond)
		for _, lane := range []string{"a", "b", "c"} {
			b.store.add([]store.Popped{b.claimOf(t, lane, 0, "1")})
			b.list.Pushed(tenant, "q", lane, 1)
		}
		time.Sleep(2 * hotlist.WakeTick)
		synctest.Wait()
		served := 0
		for _, out := range outs {
			select {
			case a := <-out:
				require.NotNil(t, a.body)
				served++
			default:
			}
		}
		require.Equal(t, 3, served)
		b.svc.Close()
		for _, out := range outs {
			select {
			case <-out:
			default:
			}
		}
	})
}

func TestMinPopWaitHoldsPopsOfTheRing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, pop.Config{})
		b.store.minWait = 300
		q := query(true, 10*time.Second)
		q.Batch = 2
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		a := <-b.start(t.Context(), wildcard(q))
		require.NotNil(t, a.body)
		require.Equal(t, 300*time.Millisecond, a.took, "also a first contact")

		b.known(t)
		out := b.start(t.Context(), wildcard(q))
		time.Sleep(5500 * time.Millisecond)
		require.Zero(t, b.store.count("estimate"), "there is nothing to wait for")
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		b.list.Pushed(tenant, "q", "a", 1)
		a = <-out
		require.NotNil(t, a.body)
		require.Equal(t, 5800*time.Millisecond, a.took)
		require.Equal(t, 1, b.store.count("estimate"), "the ring would have heard of more")

		// It ends early when the ring has heard of a full batch.
		out = b.start(t.Context(), wildcard(q))
		b.store.add([]store.Popped{b.claimOf(t, "b", 0, "1")})
		b.list.Pushed(tenant, "q", "b", 1)
		time.Sleep(100 * time.Millisecond)
		b.store.mu.Lock()
		b.store.claims[0] = []store.Popped{b.claimOf(t, "b", 0, "1", "2")}
		b.store.mu.Unlock()
		b.list.Pushed(tenant, "q", "b", 1)
		a = <-out
		require.Len(t, decode(t, a.body).Messages, 2)
		require.Less(t, a.took, 200*time.Millisecond)
	})
}

// exhaust takes every slot.
func (b *bundle) exhaust(t *testing.T) (releases []func()) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		release, err := b.gate.Acquire(ctx, admission.Pop)
		cancel()
		if err != nil {
			return releases
		}
		releases = append(releases, release)
	}
}
