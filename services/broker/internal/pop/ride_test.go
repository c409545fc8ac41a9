package pop_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

func TestPopsOfOneLaneShareACall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		b.known(t, "a", "b", "c")
		var outs []<-chan answer
		for _, lane := range []string{"a", "b", "c"} {
			b.store.add([]store.Popped{b.claimOf(t, lane, 0, "1")})
		}
		releases := b.exhaust(t) // so that all wait for a slot
		q := query(true, time.Second)
		q.Batch = 1 // nothing is asked about the queue
		for range 3 {
			outs = append(outs, b.start(t.Context(), wildcard(q)))
		}
		synctest.Wait()
		for _, release := range releases {
			release()
		}
		got := map[string]bool{}
		leases := map[string]bool{}
		for _, out := range outs {
			a := <-out
			require.NoError(t, a.err)
			r := decode(t, a.body)
			got[r.Partition], leases[r.LeaseID] = true, true
		}
		require.Len(t, got, 3)
		require.Len(t, leases, 3, "each has a lease of its own")
		require.Len(t, b.store.multis, 1)
		require.Zero(t, b.store.count("list"))
		require.Zero(t, b.ready())
	})
}

func TestALaneThatASharedClaimMissesIsAskedForAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		b.known(t, "a")
		b.store.states = map[string]store.CandidateState{"a": {Partition: "a", State: store.StateEmpty}}
		body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.NoError(t, err)
		require.Nil(t, body)
		require.Equal(t, 1, b.store.count("multi"))
		require.Equal(t, [][]string{{"a"}}, b.store.listed)
		require.Zero(t, b.ready())
	})
}

func TestPopsOfSeveralLanesGoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		b.known(t, "a", "b")
		b.store.add([]store.Popped{b.claimOf(t, "a", 0, "1")})
		q := query(false, 0)
		q.Partitions = 2
		body, err := b.svc.Pop(t.Context(), wildcard(q))
		require.NoError(t, err)
		require.NotNil(t, body)
		require.Zero(t, b.store.count("multi"))
		require.Equal(t, 1, b.store.count("list"))
	})
}

func TestAFailedSharedClaimGivesTheLaneBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		b.known(t, "a")
		b.store.errs = []error{errTimeout}
		_, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
		require.ErrorIs(t, err, pop.ErrFailed)
		require.Equal(t, 1, b.ready())
	})
}

// leased has the list know lane "a" as leased, with a message more to come, and
// returns its id and the ack that ends the lease.
func (b *bundle) leased(t *testing.T) store.AckRow {
	t.Helper()
	b.known(t, "a")
	c := b.claimOf(t, "a", 0, "1")
	b.store.lastOffset = 200
	b.store.add([]store.Popped{c})
	body, err := b.svc.Pop(t.Context(), wildcard(query(false, 0)))
	require.NoError(t, err)
	require.NotNil(t, body)
	require.Zero(t, b.ready())
	return store.AckRow{PartitionID: c.PartitionID, Group: "g", Worker: decode(t, body).LeaseID}
}

// servedOne is that the only ride was served.
func servedOne(p store.Popped, last int64) store.NextServed {
	return store.NextServed{Pops: [][]store.PopServed{{{Popped: p, LastOffset: last}}}}
}

func TestAParkedPopRidesWithTheAckOfItsLane(t *testing.T) {
	t.Parallel()
	for name, served := range map[string]bool{"served": true, "in vain": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupFused(t, pop.Config{})
				row := b.leased(t)
				require.Nil(t, b.svc.Board([]store.AckRow{row}), "nobody waits")
				q := query(true, 500*time.Millisecond)
				q.LeaseSeconds = 9
				out := b.start(t.Context(), wildcard(q))
				synctest.Wait()
				stranger := row
				stranger.PartitionID = uuid.New()
				rides := b.svc.Board([]store.AckRow{stranger, row})
				require.NotNil(t, rides)
				pops := rides.Next().Pops
				require.Len(t, pops, 1)
				require.Equal(t, "q", pops[0].Queue)
				require.Equal(t, "g", pops[0].Group)
				claim := pops[0].Claims[0]
				require.Equal(t, []any{"a", 10, 9}, []any{claim.Partition, claim.Budget, claim.LeaseSeconds})
				require.NotEqual(t, row.Worker, claim.Worker)
				require.Nil(t, b.svc.Board([]store.AckRow{row}), "the lane is taken")

				if !served {
					b.store.states = map[string]store.CandidateState{"a": {Partition: "a", State: store.StateEmpty}}
					require.Empty(t, rides.Land(store.NextServed{Pops: [][]store.PopServed{{{}}}}, nil))
					a := <-out
					require.NoError(t, a.err)
					require.Nil(t, a.body, "it has gone on waiting")
					require.Equal(t, 1, b.store.count("list"), "and looked for itself")
					return
				}
				require.Equal(t, []int{1}, rides.Land(servedOne(b.claimOf(t, "a", 0, "2"), 200), nil))
				a := <-out
				require.NoError(t, a.err)
				r := decode(t, a.body)
				require.Equal(t, claim.Worker, r.LeaseID)
				require.JSONEq(t, "2", string(r.Messages[0].Data))
				require.Zero(t, b.ready(), "leased anew")
			})
		})
	}
}

func TestWhoMayNotRide(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(r *pop.Request){
		"several lanes":     func(r *pop.Request) { r.Query.Partitions = 2 },
		"auto-ack":          func(r *pop.Request) { r.Query.AutoAck = true },
		"a large batch":     func(r *pop.Request) { r.Query.Batch = 101 },
		"a pinned lane":     func(r *pop.Request) { r.Route, r.Partition = pop.Specific, "b" },
		"of another group":  func(r *pop.Request) { r.Query.Group = "h" },
		"of another queue":  func(r *pop.Request) { r.Queue = "r" },
		"of another tenant": func(r *pop.Request) { r.Tenant = uuid.UUID{1} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupFused(t, pop.Config{})
				row := b.leased(t)
				req := wildcard(query(true, 100*time.Millisecond))
				change(&req)
				out := b.start(t.Context(), req)
				synctest.Wait()
				require.Nil(t, b.svc.Board([]store.AckRow{row}))
				<-out
			})
		})
	}
	t.Run("without a shared claim", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := setupRing(t, pop.Config{})
			row := b.leased(t)
			out := b.start(t.Context(), wildcard(query(true, 100*time.Millisecond)))
			synctest.Wait()
			require.Nil(t, b.svc.Board([]store.AckRow{row}))
			<-out
		})
	})
	t.Run("of a queue that holds its pops", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := setupFused(t, pop.Config{})
			b.store.minWait = 1000
			row := b.leased(t)
			out := b.start(t.Context(), wildcard(query(true, 100*time.Millisecond)))
			synctest.Wait()
			require.Nil(t, b.svc.Board([]store.AckRow{row}))
			<-out
		})
	})
	t.Run("of a lane without a name", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := setupFused(t, pop.Config{})
			row := b.leased(t)
			row.PartitionID = uuid.New()
			b.lanes.Put(row.PartitionID, lanes.Lane{Tenant: tenant, Partition: "a"})
			out := b.start(t.Context(), wildcard(query(true, 100*time.Millisecond)))
			synctest.Wait()
			require.Nil(t, b.svc.Board([]store.AckRow{row}))
			<-out
		})
	})
}

func TestAClientThatLeavesDuringItsRide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupFused(t, pop.Config{})
		row := b.leased(t)
		ctx, leave := context.WithCancel(t.Context())
		out := b.start(ctx, wildcard(query(true, time.Minute)))
		synctest.Wait()
		rides := b.svc.Board([]store.AckRow{row})
		require.NotNil(t, rides)
		leave()
		synctest.Wait()
		rides.Land(store.NextServed{}, errTimeout)
		a := <-out
		require.ErrorIs(t, a.err, context.Canceled)
		require.Equal(t, 1, b.ready(), "the lane is there for others")
	})
}

// What a failed transaction leased all the same is nobody's: were it leased by the name
// of what the pop gets afterwards, a renewal of that would prolong both.
func TestAfterARideThatFailedTheLeaseHasAnotherName(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"failed": errTimeout, "in vain": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setupFused(t, pop.Config{})
				row := b.leased(t)
				out := b.start(t.Context(), wildcard(query(true, time.Minute)))
				synctest.Wait()
				rides := b.svc.Board([]store.AckRow{row})
				require.NotNil(t, rides)
				b.store.add([]store.Popped{b.claimOf(t, "a", 0, "2")})
				require.Empty(t, rides.Land(store.NextServed{Pops: [][]store.PopServed{{{}}}}, failure))
				a := <-out
				require.NoError(t, a.err)
				asked := rides.Next().Pops[0].Claims[0].Worker
				require.Equal(t, failure == nil, decode(t, a.body).LeaseID == asked)
			})
		})
	}
}
