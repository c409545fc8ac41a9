package dedup

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestANilCacheVouchesForNothing(t *testing.T) {
	t.Parallel()
	var c *Cache
	require.Equal(t, Mark{Verified: store.VerifiedNone}, c.Mark(t.Context(), lane, hash(1)))
	c.Wrote(lane, uuid.New(), 0, time.Now(), hash(1))
	c.Forget(lane)
	c.ForgetQueue(lane.Tenant, lane.Queue)
}

func TestACacheNeedsABudget(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Bytes: -1}, {Bytes: 1, Wait: -1}, {Bytes: 1, Readers: -1}} {
		_, err := New(cfg, Deps{})
		require.Error(t, err)
	}
}

func TestAWarmLaneAnswersTheTipWithoutReading(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.warm(t, lane, 1000)
	for n := range uint64(100) {
		r := b.push(lane, hash(n))
		require.Equal(t, Mark{PartitionID: b.store.id(lane), Window: 3600, Verified: r.end}, b.Mark(t.Context(), lane, hash(1000+n)))
	}
	require.Empty(t, b.store.took())
}

func TestAHitNamesItsRow(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.warm(t, lane, 10)
	b.push(lane, hashes(1, 2, 3))
	b.push(lane, hashes(4))
	b.push(lane, hashes(5, 6))
	require.Equal(t, []int64{10, 14}, b.Mark(t.Context(), lane, hashes(3, 77, 5, 6, 1)).Suspects)
	require.EqualValues(t, 2, b.metric(t, "queen.dedup.suspects"))
	require.Empty(t, b.Mark(t.Context(), lane, hashes(77)).Suspects)
	m, ok := b.TryMark(lane, hashes(3, 77, 5))
	require.True(t, ok)
	require.Equal(t, b.Mark(t.Context(), lane, hashes(3, 77, 5)), m)
}

func TestTryMarkReadsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	_, ok := b.TryMark(lane, hashes(1))
	require.False(t, ok, "a cold lane has to be read")
	require.Empty(t, b.store.took())
	b.warm(t, lane, 10)
	b.push(lane, hashes(1, 2))
	m, ok := b.TryMark(lane, hashes(1))
	require.True(t, ok)
	require.Len(t, m.Suspects, 1)
	var off *Cache
	m, ok = off.TryMark(lane, hashes(1))
	require.True(t, ok)
	require.Equal(t, store.VerifiedNone, m.Verified)
}

// Minted ids are not asked for, but a client may send one back.
func TestRule05MintedHashesEnterTheCache(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.warm(t, lane, 10)
	minted := random(5)
	r := b.push(lane, minted)
	m := b.Mark(t.Context(), lane, minted[:hashSize])
	require.Equal(t, []int64{r.base}, m.Suspects)
	require.Equal(t, r.end, m.Verified)
}

func TestAWindowOfZeroTakesNoReads(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.windows["orders"] = 0
	for n := range 5 {
		l := Lane{lane.Tenant, "orders", fmt.Sprint(n)}
		b.store.write(l, hash(1))
		require.Equal(t, unmarked(), b.Mark(t.Context(), l, hash(1)))
		b.Wrote(l, b.store.id(l), 0, b.clock.Now(), hash(1))
	}
	require.Equal(t, []string{"lane"}, b.store.took(), "one for all lanes of the queue")
	b.clock.pass(memoTTL)
	b.store.windows["orders"] = 60
	require.Equal(t, store.VerifiedNone, b.Mark(t.Context(), lane, hash(2)).Verified, "no such lane yet")
	l := Lane{lane.Tenant, "orders", "0"}
	b.Mark(t.Context(), l, hash(2))
	require.Equal(t, 60, b.Mark(t.Context(), l, hash(2)).Window)
}

func TestALaneIsWarmFromItsFirstSegmentOn(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.windows["orders"] = 60
	require.Equal(t, unmarked(), b.Mark(t.Context(), lane, hash(1)))
	b.push(lane, hash(1))
	m := b.Mark(t.Context(), lane, hashes(1, 2))
	require.Equal(t, Mark{PartitionID: b.store.id(lane), Window: 60, Suspects: []int64{0}}, m)
	require.Equal(t, []string{"lane"}, b.store.took())
}

// A cold lane is read in pages, each once, however many wait for it.
func TestRule07AColdLaneIsReadOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	const ids = 5*pageOffsets + 100
	var want []byte
	for n := 0; n < ids; n += 50 {
		h := random(50)
		b.store.write(lane, h)
		if n%1000 == 0 {
			want = append(want, h[:hashSize]...)
		}
	}
	var all sync.WaitGroup
	marks := make([]Mark, 20)
	for i := range marks {
		all.Go(func() { marks[i] = b.Mark(context.Background(), lane, want) })
	}
	all.Wait()
	last := b.store.lanes[lane].last
	for _, m := range marks {
		require.LessOrEqual(t, last-m.Verified, int64(gapAtOnce))
		require.GreaterOrEqual(t, len(m.Suspects), len(want)/hashSize-1)
	}
	require.Equal(t, []string{"lane", "page", "page", "page", "page", "page"}, b.store.took()[:6])
	for i, after := range b.store.pages {
		require.True(t, i == 0 && after == -1 || after >= b.store.pages[i-1]+pageOffsets, "a page was read twice")
	}
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.hydrations"))
	require.Equal(t, b.used.Load(), b.charged())
}

func TestFewIDsOfAColdLaneAreReadWhenItIsPushedToAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.write(lane, random(gapAtOnce))
	require.EqualValues(t, -1, b.Mark(t.Context(), lane, hash(1)).Verified, "so few are left to SQL")
	require.Equal(t, []string{"lane"}, b.store.took())
	require.EqualValues(t, gapAtOnce-1, b.Mark(t.Context(), lane, hash(2)).Verified)
	require.Equal(t, []string{"page"}, b.store.took())

	other := Lane{lane.Tenant, "orders", "b"}
	b.store.write(other, random(gapAtOnce+1))
	require.EqualValues(t, gapAtOnce, b.Mark(t.Context(), other, hash(1)).Verified)
}

// What others wrote is read from where the cache stands, and only once it is
// more than SQL had better search itself.
func TestRule07CatchingUpIsIncremental(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.warm(t, lane, 10_000)
	b.store.pages = nil
	foreign := b.store.write(lane, hashes(1, 2, 3))
	own := b.push(lane, hash(4))
	m := b.Mark(t.Context(), lane, hashes(2, 4))
	require.Equal(t, Mark{PartitionID: m.PartitionID, Window: 3600, Verified: 9999}, m, "four offsets are left to SQL")
	b.push(lane, random(gapAtOnce-4))
	require.EqualValues(t, 9999, b.Mark(t.Context(), lane, hash(2)).Verified)
	require.Empty(t, b.store.took())
	last := b.push(lane, random(1))
	m = b.Mark(t.Context(), lane, hashes(2, 4))
	require.Equal(t, []string{"page"}, b.store.took())
	require.Equal(t, []int64{9999}, b.store.pages)
	require.Equal(t, last.end, m.Verified)
	require.Equal(t, []int64{foreign.base, own.base}, m.Suspects)
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.catch_ups"))
}

func TestTheTipIsReadAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.warm(t, lane, 100)
	b.store.write(lane, random(1000))
	b.clock.pass(memoTTL - 1)
	require.EqualValues(t, 99, b.Mark(t.Context(), lane, hash(1)).Verified)
	b.clock.pass(1)
	require.EqualValues(t, 1099, b.Mark(t.Context(), lane, hash(1)).Verified)
	require.Equal(t, []string{"lane", "page"}, b.store.took())

	// Now that others are known to write, sooner.
	b.store.write(lane, random(1000))
	b.clock.pass(busyTTL)
	require.EqualValues(t, 2099, b.Mark(t.Context(), lane, hash(1)).Verified)
	b.clock.pass(busyTTL)
	require.EqualValues(t, 2099, b.Mark(t.Context(), lane, hash(1)).Verified)
	b.store.took()
	b.clock.pass(busyTTL)
	b.Mark(t.Context(), lane, hash(1))
	require.Empty(t, b.store.took(), "and not any more once they ceased")
}

func TestRule01AMarkBelongsToThePartitionID(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.warm(t, lane, 10)
	b.push(lane, hash(1))
	old := b.store.id(lane)
	b.store.set(func() { delete(b.store.lanes, lane) })
	require.Equal(t, old, b.Mark(t.Context(), lane, hash(1)).PartitionID, "which SQL no longer knows")
	b.store.write(lane, hash(2))
	b.push(lane, hash(3))
	b.Mark(t.Context(), lane, hash(1))
	m := b.Mark(t.Context(), lane, hashes(1, 2))
	require.Equal(t, Mark{PartitionID: b.store.id(lane), Window: 3600, Verified: 1, Suspects: []int64{0}}, m)
	require.NotEqual(t, old, m.PartitionID)

	b.store.set(func() { delete(b.store.lanes, lane) })
	b.store.write(lane, hash(2))
	b.clock.pass(memoTTL)
	b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, b.store.id(lane), b.Mark(t.Context(), lane, hash(1)).PartitionID, "noticed without a write too")
}

func TestRule01OffsetsTakenBackVoidTheMark(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	lose := func(n int) { // a failover that lost commits
		l := b.store.lanes[lane]
		for range n {
			l.last = l.rows[len(l.rows)-1].base - 1
			l.rows = l.rows[:len(l.rows)-1]
		}
	}
	b.store.write(lane, random(500))
	require.EqualValues(t, 499, b.Mark(t.Context(), lane, hash(9)).Verified)
	b.push(lane, hash(1))
	b.push(lane, hash(2))
	lose(2)
	b.push(lane, hash(3))
	b.push(lane, hash(4))
	b.Mark(t.Context(), lane, hash(1))
	m := b.Mark(t.Context(), lane, hashes(1, 2, 3, 4))
	require.EqualValues(t, 501, m.Verified)
	require.Equal(t, []int64{500, 501}, m.Suspects)
	require.Empty(t, b.Mark(t.Context(), lane, hashes(1, 2)).Suspects)

	lose(1)
	b.clock.pass(memoTTL)
	b.Mark(t.Context(), lane, hash(1))
	require.EqualValues(t, 500, b.Mark(t.Context(), lane, hash(1)).Verified)
}

func TestAChangedWindowIsNoticed(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.windows["orders"] = 60
	b.store.write(lane, hash(1))
	b.clock.pass(100 * time.Second)
	b.store.write(lane, hash(2))
	b.Mark(t.Context(), lane, hash(9))
	require.Empty(t, b.Mark(t.Context(), lane, hash(1)).Suspects)

	b.store.windows["orders"] = 3600
	require.Equal(t, 60, b.Mark(t.Context(), lane, hash(1)).Window, "which SQL does not accept any more")
	b.ForgetQueue(lane.Tenant, "orders")
	b.Mark(t.Context(), lane, hash(9))
	m := b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, 3600, m.Window)
	require.Equal(t, []int64{0}, m.Suspects)

	b.store.windows["orders"] = 7200
	b.clock.pass(memoTTL)
	b.Mark(t.Context(), lane, hash(9))
	m = b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, 7200, m.Window, "also without being told")
	require.Equal(t, []int64{0}, m.Suspects)

	b.store.windows["orders"] = 60
	b.clock.pass(memoTTL)
	b.store.took()
	m = b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, 60, m.Window)
	require.Equal(t, []string{"lane"}, b.store.took(), "a shorter window needs no reading")

	b.store.windows["orders"] = 0
	b.clock.pass(memoTTL)
	require.Equal(t, unmarked(), b.Mark(t.Context(), lane, hash(1)))
	require.Zero(t, b.metric(t, "queen.dedup.bytes")-b.charged())
}

func TestIDsOlderThanTheWindowAreForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.windows["orders"] = 60
	b.warm(t, lane, 10)
	first := random(1)
	b.push(lane, first)
	for range 3 {
		b.push(lane, random(blockIDs))
	}
	require.NotEmpty(t, b.find(lane).memory.groups)
	full := b.used.Load()
	b.clock.pass(66 * time.Second)
	require.NotEmpty(t, b.Mark(t.Context(), lane, first).Suspects, "nothing tells the time but the lane's own rows")
	b.push(lane, random(10))
	require.Empty(t, b.Mark(t.Context(), lane, first).Suspects)
	require.Empty(t, b.find(lane).memory.groups)
	require.Less(t, b.used.Load(), full)
	require.Equal(t, b.used.Load(), b.charged())
}

func TestForgottenLanesAreReadAnew(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	other := Lane{lane.Tenant, "other", "a"}
	b.warm(t, lane, 1000)
	b.warm(t, other, 1000)
	b.Forget(lane)
	b.Mark(t.Context(), lane, hash(1))
	b.Mark(t.Context(), other, hash(1))
	require.Equal(t, []string{"lane", "page"}, b.store.took())
	b.ForgetQueue(lane.Tenant, "orders")
	b.ForgetQueue(uuid.New(), "other")
	b.Mark(t.Context(), lane, hash(1))
	b.Mark(t.Context(), other, hash(1))
	require.Equal(t, []string{"lane", "page"}, b.store.took())
	b.ForgetQueue(lane.Tenant, "other")
	b.Forget(lane)
	b.Forget(lane)
	require.Zero(t, b.used.Load())
	require.Zero(t, b.metric(t, "queen.dedup.lanes"))
}

func TestAPageOfAForgottenLaneIsNotUsed(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.write(lane, random(1000))
	once := sync.OnceFunc(func() {
		b.store.set(func() { delete(b.store.lanes, lane) })
		b.store.write(lane, hashes(1, 2, 3))
		b.Forget(lane)
	})
	b.store.onRead = func(kind string) {
		if kind == "page" {
			once()
		}
	}
	b.Mark(t.Context(), lane, hash(1))
	m := b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, Mark{PartitionID: b.store.id(lane), Window: 3600, Verified: 2, Suspects: []int64{0}}, m)
	require.Equal(t, b.used.Load(), b.charged())
}

// A write that is told while a page is read is in memory once.
func TestAWriteDuringAReadIsAppendedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.write(lane, random(1000))
	b.store.onRead = func(kind string) {
		if kind == "page" {
			b.store.set(func() { b.store.onRead = nil })
			b.push(lane, hash(1)) // behind a gap: the page brings it
		}
	}
	require.EqualValues(t, 1000, b.Mark(t.Context(), lane, hash(2)).Verified)
	for n := range uint64(gapAtOnce + 1) {
		b.store.write(lane, hash(100+n))
	}
	b.clock.pass(memoTTL)
	b.store.onRead = func(kind string) {
		if kind == "page" {
			b.store.set(func() { b.store.onRead = nil })
			l := b.store.lanes[lane]
			b.Wrote(lane, l.id, 1001, b.clock.Now(), hash(100)) // told late
		}
	}
	m := b.Mark(t.Context(), lane, hashes(1, 100, 101))
	require.Equal(t, []int64{1000, 1001, 1002}, m.Suspects)
	require.EqualValues(t, 1001+gapAtOnce, m.Verified)
	b.Wrote(lane, m.PartitionID, 1002, b.clock.Now(), hash(101)) // told later still
	require.Equal(t, m, b.Mark(t.Context(), lane, hashes(1, 100, 101)))
}

// A lane that takes long to read is not waited for to the end: first a larger
// gap will do, and then what there is.
func TestAPushDoesNotWaitForAHugeLane(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	for range 6 {
		b.store.write(lane, random(pageOffsets))
	}
	b.store.write(lane, random(gapImpatient))
	b.store.onRead = func(string) { b.clock.pass(200 * time.Millisecond) }
	m := b.Mark(t.Context(), lane, hash(1))
	last := b.store.lanes[lane].last
	require.EqualValues(t, gapImpatient, last-m.Verified)
	b.store.took()
	require.Equal(t, last, b.Mark(t.Context(), lane, hash(1)).Verified, "the next one goes on from there")
	require.Equal(t, []string{"page"}, b.store.took())
}

func TestWaitingEndsWithTheContextAndAtTheLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Wait: 20 * time.Millisecond})
	b.store.write(lane, random(1000))
	release := make(chan struct{})
	b.store.onRead = func(kind string) {
		if kind == "page" {
			<-release
		}
	}
	var holder sync.WaitGroup
	holder.Go(func() { b.Mark(context.Background(), lane, hash(1)) })
	require.Eventually(t, func() bool {
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		return len(b.store.reads) == 2
	}, 10*time.Second, time.Millisecond)
	m := b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, Mark{PartitionID: b.store.id(lane), Window: 3600, Verified: -1}, m)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, m, b.Mark(gone, lane, hash(1)))
	close(release)
	holder.Wait()
	require.NotContains(t, b.log.String(), "WARN", "nothing is broken")
}

func TestAFailingDatabaseLeavesItToSQL(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.write(lane, random(1000))
	b.store.err = errDown
	require.Equal(t, unmarked(), b.Mark(t.Context(), lane, hash(1)))
	b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, 1, strings.Count(b.log.String(), "WARN"), "one warning a minute")
	require.EqualValues(t, 2, b.metric(t, "queen.dedup.failures"))
	b.store.err = nil
	require.EqualValues(t, 999, b.Mark(t.Context(), lane, hash(1)).Verified)
	b.clock.pass(memoTTL)
	b.store.err = errDown
	require.EqualValues(t, 999, b.Mark(t.Context(), lane, hash(1)).Verified, "what is verified stays so")
	require.Equal(t, 1, strings.Count(b.log.String(), "WARN"))
	b.clock.pass(warnEvery)
	b.Mark(t.Context(), lane, hash(1))
	require.Equal(t, 2, strings.Count(b.log.String(), "WARN"))
}

func TestPurgedRowsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.store.write(lane, random(1000))
	b.store.onRead = func(kind string) {
		if kind == "page" {
			b.store.set(func() { b.store.lanes[lane].rows = nil })
		}
	}
	require.EqualValues(t, 999, b.Mark(t.Context(), lane, hash(1)).Verified)
	require.Equal(t, []string{"lane", "page"}, b.store.took())
}
