package pop_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

// calm makes ordinary re-checks so rare that they do not count.
var calm = pop.Config{InitialInterval: time.Hour, MaxInterval: time.Hour, PendingGate: true}

func specific(partition string) pop.Request {
	return pop.Request{Tenant: tenant, Route: pop.Specific, Queue: "q", Partition: partition, Query: query(true, 10*time.Second)}
}

// look looks once and lets what was woken come to rest.
func (b *bundle) look(t *testing.T) {
	t.Helper()
	require.NoError(t, b.svc.Look(t.Context()))
	synctest.Wait()
}

func TestALookFindsWhatNobodyAnnounced(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]pop.Request{
		"wildcard": wildcard(query(true, 10*time.Second)),
		"specific": specific("p"),
		"discover": {Tenant: tenant, Route: pop.Discover, Query: query(true, 10*time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, calm)
				out := b.start(t.Context(), req)
				b.look(t)
				b.store.write("q", "p")
				b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
				time.Sleep(time.Millisecond)
				b.look(t)
				a := <-out
				require.NoError(t, a.err)
				require.Len(t, decode(t, a.body).Messages, 1)
				require.Equal(t, time.Millisecond, a.took)
				b.svc.Close()
			})
		})
	}
}

func TestALookConcernsOnlyTheLanesOfItsTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, calm)
		out := b.start(t.Context(), specific("p"))
		b.store.write("q", "other")
		b.look(t)
		require.Equal(t, 1, b.store.count("specific"), "its own first look")
		b.store.write("q", "other", "p")
		b.look(t)
		require.Equal(t, 2, b.store.count("specific"))
		require.Nil(t, (<-out).body)
	})
}

// What is leased to somebody else, or delayed, stays; it must not cost a claim each time.
func TestALookClaimsWhatStaysOnlyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, calm)
		out := b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		b.store.write("q", "leased")
		for range 20 {
			b.look(t)
			time.Sleep(50 * time.Millisecond)
		}
		require.Equal(t, 2, b.store.count("wildcard"), "the first look, and that for the lane")
		b.store.write("q", "leased", "new")
		b.look(t)
		require.Equal(t, 3, b.store.count("wildcard"))
		b.store.write("q")
		b.look(t)
		b.store.write("q", "leased")
		b.look(t)
		require.Equal(t, 4, b.store.count("wildcard"), "it was empty in between")
		time.Sleep(1001 * time.Millisecond)
		b.look(t)
		require.Equal(t, 5, b.store.count("wildcard"), "what was seen long ago is news")
		require.Nil(t, (<-out).body)
	})
}

// A lane that was served may have got the next message before the next look.
func TestALookFindsTheNextMessageOfALaneThatWasServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, calm)
		first := b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		second := b.start(t.Context(), wildcard(query(true, 10*time.Second)))
		b.store.write("q", "p")
		for _, out := range []<-chan answer{first, second} {
			b.store.add([]store.Popped{b.claimOf(t, "p", 0, "1")})
			b.look(t)
			require.NotNil(t, (<-out).body)
		}
		b.svc.Close()
	})
}

func TestALookWakesAPopForEachLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, calm)
		var outs []<-chan answer
		for range 5 {
			outs = append(outs, b.start(t.Context(), wildcard(query(true, 10*time.Second))))
		}
		for _, p := range []string{"a", "b", "c"} {
			b.store.add([]store.Popped{b.claimOf(t, p, 0, "1")})
		}
		b.store.write("q", "a", "b", "c")
		b.look(t)
		for _, out := range outs[:3] {
			require.NotNil(t, (<-out).body)
		}
		require.Equal(t, 8, b.store.count("wildcard"), "nobody looked in vain")
		b.svc.Close()
	})
}

func TestALookLeavesToTheHotListWhatItServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupRing(t, calm)
		out := b.start(t.Context(), wildcard(query(true, 100*time.Millisecond)))
		b.look(t)
		require.Empty(t, b.store.rings)
		<-out
	})
}

// One statement asks for many queues, and once for all who wait in a group of one.
func TestALookAsksForEachGroupOfAQueueOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, calm)
		for i := range 300 {
			req := wildcard(query(true, 10*time.Second))
			req.Queue = fmt.Sprint("q", i)
			b.start(t.Context(), req)
		}
		for _, p := range []string{"a", "b", "a"} {
			b.start(t.Context(), specific(p))
		}
		b.look(t)
		require.Len(t, b.store.rings, 301)
		require.Equal(t, 2, b.store.count("recent"))
		b.svc.Close()
		synctest.Wait()
		b.look(t)
		require.Equal(t, 2, b.store.count("recent"), "nobody waits")
	})
}

func TestTheFirstPopThatWaitsIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := 0
		b := setup(t, calm)
		b.svc.OnPark = func() { told++ }
		first := b.start(t.Context(), wildcard(query(true, time.Second)))
		second := b.start(t.Context(), wildcard(query(true, 2*time.Second)))
		require.Equal(t, 1, told)
		<-first
		<-second
		<-b.start(t.Context(), wildcard(query(true, time.Second)))
		require.Equal(t, 2, told)
	})
}
