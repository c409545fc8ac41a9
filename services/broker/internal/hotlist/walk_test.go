package hotlist

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

var errDown = errors.New("down")

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("lane-%06d", i)
	}
	return list
}

// state asks for candidates and gives them back.
func (b *bench) ask() (lanes []string, state State) {
	c, state := b.Checkout(tenant, "q", "g", 64, 1<<20)
	lanes = c.Partitions()
	c.Abandon()
	return lanes, state
}

// drainAll takes everything that is ready for good.
func (b *bench) drainAll() (lanes []string) {
	for {
		c, state := b.Checkout(tenant, "q", "g", 64, 1<<20)
		if state != Served {
			return lanes
		}
		lanes = append(lanes, c.Partitions()...)
		vs := make([]Verdict, len(c.Partitions()))
		for i, p := range c.Partitions() {
			vs[i] = Verdict{Partition: p, PartitionID: idOf(p), Kind: TookAutoAck}
		}
		c.Return(vs)
	}
}

// TestRule12OnlyAReseedMakesARing: no memo of the broker decides that a group is
// seeded. A group that the list does not know goes to SQL, and a million lanes are
// read in pages.
func TestRule12OnlyAReseedMakesARing(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.push(1)
	_, state := b.ask()
	require.Equal(t, Unknown, state)
	b.limits = limits{page: 10, pages: 200, lanes: 1000}
	b.store.list(names(95)...)
	b.reseed()
	require.Equal(t, 10, b.store.pages)
	require.ElementsMatch(t, names(95), b.drainAll())
	_, state = b.Checkout(tenant, "q", "another", 1, 1)
	require.Equal(t, Unknown, state)
}

func TestPassGoesOnWhereABoundStoppedIt(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]limits{
		"pages": {page: 10, pages: 3, lanes: 1000},
		"lanes": {page: 10, pages: 200, lanes: 30},
		"both":  {page: 7, pages: 4, lanes: 25},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, Config{})
			b.limits = limits
			b.store.list(names(100)...)
			served := map[string]bool{}
			for range 8 {
				before := len(served)
				b.reseed()
				require.LessOrEqual(t, b.census().lanes, limits.lanes, "memory stays bounded")
				for _, lane := range b.drainAll() {
					served[lane] = true
				}
				if before < 100 {
					require.Greater(t, len(served), before, "every pass reaches lanes that none did before")
				}
			}
			require.Len(t, served, 100)
		})
	}
}

func TestFullTableTakesNoMoreLanesAndOwesAWalk(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.limits = limits{page: 10, pages: 200, lanes: 4}
	b.reseed()
	for _, lane := range names(4) {
		b.Pushed(tenant, "q", lane, 1)
	}
	require.False(t, b.ringOf().walk.owed)
	b.Pushed(tenant, "q", "one more", 1)
	require.True(t, b.ringOf().walk.owed)
	require.ElementsMatch(t, names(4), b.drainAll())
	b.store.list("one more")
	b.reseed()
	require.Equal(t, []string{"one more"}, b.drainAll(), "served lanes make room")
}

func TestMarksDuringAWalkAreNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.onPage = func(uuid.UUID) { b.push(1) } // after the ring is there, before the page is read
	b.reseed()
	lanes, state := b.ask()
	require.Equal(t, Served, state)
	require.Equal(t, []string{"p"}, lanes)
}

func TestColdUntilTheFirstWalkAndWhenALaneIsNotKnown(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	state := func() State { _, s := b.ask(); return s }
	b.store.err = errDown
	require.ErrorIs(t, b.Reseed(t.Context(), tenant, "q", "g"), errDown)
	require.Equal(t, Cold, state(), "nothing is known")
	b.store.err = nil
	b.reseed()
	require.Equal(t, Empty, state())
	b.advance(walkPause)
	b.Mark(tenant, "q", "", 1)
	require.Equal(t, Cold, state(), "a lane that nobody named has work")
	b.reseed()
	require.Equal(t, Empty, state())
	b.Mark(tenant, "q", "", 1)
	require.Equal(t, Empty, state(), "just walked: the floor walks again after the pause")
	b.advance(walkPause)
	require.Equal(t, Cold, state())
	b.reseed()
	b.advance(walkPause)
	b.MarkGroup(tenant, "q", "", "other")
	require.Equal(t, Empty, state())
	b.MarkGroup(tenant, "q", "", "g")
	require.Equal(t, Cold, state())
	b.push(1)
	require.Equal(t, Served, state(), "what is known is served all the same")
	b.drainAll()
	b.reseed()
	b.advance(3 * ReseedDefault)
	require.Equal(t, Cold, state(), "nobody has asked for long, so nobody has walked")
}

func TestReseedsThatWaitShareOnePass(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	entered, leave := make(chan struct{}), make(chan struct{})
	var pages atomic.Int32
	b.store.onPage = func(uuid.UUID) {
		if pages.Add(1) == 1 {
			close(entered)
			<-leave
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { b.reseed() })
	<-entered
	for range 20 {
		wg.Go(func() { b.reseed() })
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Reseed(ctx, tenant, "q", "g"), context.Canceled)
	close(leave)
	wg.Wait()
	require.LessOrEqual(t, pages.Load(), int32(21))
	require.GreaterOrEqual(t, pages.Load(), int32(2), "a pass that was under way proves nothing to those who came later")
}

func TestAbortedPassIsMadeAgainByThoseWhoWait(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	b.store.onPage = func(uuid.UUID) { cancel() }
	require.ErrorIs(t, b.Reseed(ctx, tenant, "q", "g"), context.Canceled)
	_, state := b.ask()
	require.Equal(t, Cold, state)
	require.Zero(t, b.ringOf().walk.failed, "the database is not to blame")
	b.reseed()
	_, state = b.ask()
	require.Equal(t, Empty, state)
}

func TestFailedWalksBackOff(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.reseed()
	b.ask()
	b.store.err = errDown
	b.advance(ReseedDefault)
	b.lay(t.Context())
	w := &b.ringOf().walk
	require.Equal(t, 1, w.failed)
	require.Greater(t, w.due(ReseedDefault), b.List.now())
	before := b.store.pages
	b.lay(t.Context())
	require.Equal(t, before, b.store.pages)
	b.store.err = nil
	b.advance(time.Second)
	b.ask()
	b.lay(t.Context())
	require.Zero(t, w.failed)
}

func TestAdmissionIsTakenForEveryPage(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.limits.page = 10
	taken, given := 0, 0
	b.deps.Admit = func(context.Context) (func(), error) {
		taken++
		return func() { given++ }, nil
	}
	b.store.list(names(25)...)
	b.reseed()
	require.Equal(t, [2]int{3, 3}, [2]int{taken, given})
	b.deps.Admit = func(context.Context) (func(), error) { return nil, errDown }
	require.ErrorIs(t, b.Reseed(t.Context(), tenant, "q", "g"), errDown)
}

func TestRingsAreWalkedOnTheirOwnGrid(t *testing.T) {
	t.Parallel()
	w := &walk{phase: int64(7 * time.Second), seeded: true}
	s := func(n int) int64 { return int64(time.Duration(n) * time.Second) }
	for began, due := range map[int]int{0: 7, 6: 7, 7: 37, 20: 37, 36: 37, 37: 67} {
		w.began, w.ended = s(began), s(began)
		require.Equal(t, s(due), w.due(30*time.Second), "begun at %d", began)
	}
	w.began, w.ended, w.owed = s(8), s(10), true
	require.Equal(t, s(18), w.due(30*time.Second), "owed: four times what the last one took")
	w.ended, w.owed = s(35), false
	require.Equal(t, s(62), w.due(30*time.Second), "one that takes long rests as long")
	b := setup(t, Config{})
	phases := map[int64]bool{}
	for _, group := range names(50) {
		r := newRing(newQueue(b.List, key{tenant, "q"}, 1), group)
		require.Less(t, r.walk.phase, int64(phaseSpread))
		phases[r.walk.phase] = true
	}
	require.Greater(t, len(phases), 40)
}

func TestOnlyAttendedRingsAreWalked(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.reseed()
	b.advance(2 * ReseedDefault)
	b.lay(t.Context())
	require.Equal(t, 1, b.store.pages)
	b.ask()
	b.lay(t.Context())
	require.Equal(t, 2, b.store.pages)
}

func TestDroppedRingDiscardsWhatStillComes(t *testing.T) {
	t.Parallel()
	for name, drop := range map[string]func(b *bench){
		"queue":                     func(b *bench) { b.DropQueue(tenant, "q") },
		"group":                     func(b *bench) { b.DropGroup(tenant, "q", "g") },
		"group of all the tenant's": func(b *bench) { b.DropGroup(tenant, "", "g") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, plain)
			b.rows()
			old := b.take(1)
			drop(b)
			_, state := b.ask()
			require.Equal(t, Unknown, state)
			b.reseed()
			old.Return([]Verdict{verdictOf(b, Took)})
			old.Abandon()
			b.acked()
			require.Equal(t, idle, b.stateOf("p"))
			b.check()
		})
	}
	b := setupQueue(t, plain)
	b.DropGroup(uuid.New(), "", "g")
	b.DropGroup(tenant, "other", "g")
	_, state := b.ask()
	require.Equal(t, Empty, state)
}

func TestWalkOfADroppedRingChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.list(names(10)...)
	b.store.onPage = func(uuid.UUID) { b.DropQueue(tenant, "q") }
	b.reseed()
	require.Zero(t, b.census())
}

func TestSweepDropsWhatNobodyTouches(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	b.sweep()
	require.NotNil(t, b.ringOf(), "a second chance")
	b.sweep()
	require.Nil(t, b.queueOf())

	b = setupQueue(t, plain)
	b.push(1)
	b.sweep()
	c := b.take(1)
	b.sweep()
	b.sweep()
	b.sweep()
	require.NotNil(t, b.ringOf(), "a pop has a lane of it in hand")
	c.Return([]Verdict{verdictOf(b, Took)})
	b.sweep()
	require.Nil(t, b.queueOf(), "pushed to, but popped by nobody")

	b = setupQueue(t, plain)
	for range 5 {
		b.sweep()
		b.ask()
	}
	require.NotNil(t, b.ringOf(), "popped all the while")
}

func TestSweepGivesBackTheNumbersOfIdleLanes(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.list(names(5000)...)
	b.reseed()
	require.Len(t, b.drainAll(), 5000)
	b.push(1)
	c := b.take(1)
	b.sweep()
	require.Equal(t, 1, b.census().lanes)
	c.Return([]Verdict{leasedTo(b, 9)})
	b.acked()
	require.Equal(t, idle, b.stateOf("p"), "what is in use keeps its number, and its id")
	b.reseed()
	require.Len(t, b.drainAll(), 5000)
	b.check()
}

func TestRecreatedPartitionIsFoundByItsNewID(t *testing.T) {
	t.Parallel()
	b := setupQueue(t, plain)
	b.rows()
	b.taken(8)
	id := uuid.New()
	b.push(1)
	b.advance(2 * time.Second)
	b.verdict(Verdict{Partition: "p", PartitionID: id, Kind: Took, BatchEnd: 8, LastOffset: 9})
	b.acked()
	require.Equal(t, wheel, b.stateOf("p"))
	b.Promote(id, "g")
	require.Equal(t, ready, b.stateOf("p"))
}

func TestNilListRemembersNothing(t *testing.T) {
	t.Parallel()
	var l *List
	l.Pushed(tenant, "q", "p", 1)
	l.Mark(tenant, "q", "p", 1)
	l.MarkGroup(tenant, "q", "p", "g")
	l.Promote(uuid.New(), "g")
	l.DropQueue(tenant, "q")
	l.DropGroup(tenant, "q", "g")
	l.Changed(tenant, "q")
	require.NoError(t, l.Reseed(t.Context(), tenant, "q", "g"))
	c, state := l.Checkout(tenant, "q", "g", 1, 1)
	require.Equal(t, Unknown, state)
	c.Return(nil)
	c.Abandon()
	require.Nil(t, c.Partitions())
	require.False(t, c.SkipWindow())
	age, n := l.Age(tenant, "q", "g")
	require.Zero(t, age)
	require.Zero(t, n)
	age, n = l.Oldest()
	require.Zero(t, age)
	require.Zero(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, l.Run(ctx))
}

func TestWatchMarksWhatWasWrittenLately(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.reseed()
	require.NoError(t, b.watch(t.Context(), WatchSpan))
	require.Len(t, b.store.watches, 1, "a pop that waits has made the ring")
	b.advance(AttentionDefault + 1)
	b.store.recent = map[string][]store.PartitionRef{"q/g": {{ID: idOf("p"), Name: "p"}}}
	require.NoError(t, b.watch(t.Context(), WatchSpan))
	require.Len(t, b.store.watches, 1, "nobody waits")
	b.store.watches = nil
	_, state := b.ask()
	require.Equal(t, Empty, state)
	require.NoError(t, b.watch(t.Context(), WatchSpan))
	require.Equal(t, []time.Duration{WatchSpan}, b.store.watches)
	require.Equal(t, []string{"p"}, b.waker.take())
	require.Equal(t, ready, b.stateOf("p"))
	b.advance(AttentionDefault + 1)
	require.NoError(t, b.watch(t.Context(), WatchSpan))
	require.Len(t, b.store.watches, 1, "nobody waits any more")
}

// A group whose cursors have all moved has no lease any more: its walk frees the lanes
// that waited for one.
func TestRepairFreesWhatWaitsForALease(t *testing.T) {
	t.Parallel()
	for name, repair := range map[string]func(b *bench){
		"at once":        func(b *bench) { require.NoError(b.t, b.Repair(b.t.Context(), tenant, "q", "g")) },
		"when it is due": func(b *bench) { b.MarkGroup(tenant, "q", "", "g"); b.pass(time.Second); b.lay(b.t.Context()) },
		"after a failure": func(b *bench) {
			b.store.err = errDown
			require.ErrorIs(b.t, b.Repair(b.t.Context(), tenant, "q", "g"), errDown)
			b.store.err = nil
			b.reseed()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupQueue(t, plain)
			b.push(1)
			b.taken(9)
			b.store.list("p")
			b.reseed()
			_, state := b.ask()
			require.Equal(t, Empty, state, "a walk leaves a lane alone that is leased")
			repair(b)
			c := b.take(1)
			require.Equal(t, []string{"p"}, c.Partitions())
			c.Return([]Verdict{leasedTo(b, 9)})
			b.reseed()
			_, state = b.ask()
			require.Equal(t, Empty, state, "the walk after it is like any other")
		})
	}
}

func TestRepairOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	require.NoError(t, b.Repair(t.Context(), tenant, "q", "g"))
	b.reseed()
	pages := b.store.pages
	require.NoError(t, b.Repair(t.Context(), tenant, "q", "another"))
	require.NoError(t, (*List)(nil).Repair(t.Context(), tenant, "q", "g"))
	require.Equal(t, pages, b.store.pages, "nobody pops for them, so nobody has to know")
}
