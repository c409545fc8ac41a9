package dedup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func laneOf(n int) Lane { return Lane{lane.Tenant, "orders", fmt.Sprint("lane-", n)} }

// A lane fits as long as what it is expected to cost stays below nine tenths of
// the budget.
func TestALaneThatFitsIsRememberedAndOneThatDoesNotIsNot(t *testing.T) {
	t.Parallel()
	const ids = 100_000
	need := int64(ids*bytesPerID) + newEntry(lane).overhead()
	for _, fits := range []bool{true, false} {
		limit := need*10/9 + 1
		if !fits {
			limit = need*10/9 - 1
		}
		b := setup(t, Config{Bytes: limit})
		known := b.store.write(lane, random(ids))
		for range 2 {
			m := b.Mark(t.Context(), lane, append(random(1), known.hashes[:hashSize]...))
			require.EqualValues(t, ids-1, m.Verified, "known either way")
			require.Equal(t, []int64{0}, m.Suspects)
		}
		require.LessOrEqual(t, b.used.Load(), limit)
		require.Equal(t, b.used.Load(), b.charged())
		if fits {
			require.Zero(t, b.metric(t, "queen.dedup.suppressed"))
			require.Greater(t, b.used.Load(), int64(ids*5))
			continue
		}
		require.EqualValues(t, 1, b.metric(t, "queen.dedup.suppressed"))
		require.EqualValues(t, 2, b.metric(t, "queen.dedup.scans"))
		require.Less(t, b.used.Load(), int64(1000))
	}
}

// Far under budget a push still leaves SQL next to nothing to search.
func TestRule08UnderBudgetLocksAreHeldShortly(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Bytes: 1}) // not even room for a lane's name
	const ids = 3*pageOffsets + 1000
	var old fakeRow
	for n := 0; n < ids; n += 500 {
		if r := b.store.write(lane, random(500)); n == 40_000 {
			old = r
		}
	}
	last := b.store.lanes[lane].last
	for range 2 {
		m := b.Mark(t.Context(), lane, append(random(3), old.hashes[100*hashSize:102*hashSize]...))
		require.LessOrEqual(t, last-m.Verified, int64(gapAtOnce))
		require.Equal(t, []int64{old.base}, m.Suspects)
	}
	require.Zero(t, b.used.Load())
	b.push(lane, random(1))
	require.Equal(t, unmarked(), b.Mark(t.Context(), Lane{lane.Tenant, "nowhere", ""}, hash(1)))
	require.Equal(t, unmarked(), b.Mark(t.Context(), Lane{lane.Tenant, "orders", "nowhere"}, hash(1)))
	b.store.err = errDown
	require.Equal(t, unmarked(), b.Mark(t.Context(), lane, hash(1)))
}

func TestABarredLaneNamesTheNewestOfTooManyRows(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Bytes: 1})
	all := b.store.write(lane, hash(0)).hashes
	for n := range uint64(3 * MaxSuspects) {
		all = append(all, b.store.write(lane, hash(1+n)).hashes...)
	}
	m := b.Mark(t.Context(), lane, all)
	require.Len(t, m.Suspects, MaxSuspects)
	require.EqualValues(t, 3*MaxSuspects, m.Suspects[MaxSuspects-1])
	require.EqualValues(t, 3*MaxSuspects, m.Verified)
}

func TestABarredLaneIsTriedAgainAfterThirtySeconds(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Bytes: 100_000})
	b.store.windows["orders"] = 60
	b.store.write(lane, random(50_000))
	b.Mark(t.Context(), lane, hash(1))
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.suppressed"))
	require.Equal(t, 1, strings.Count(b.log.String(), "too small"))
	b.clock.pass(cooldown - 1)
	b.Mark(t.Context(), lane, hash(1))
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.suppressed"))
	b.clock.pass(1)
	b.Mark(t.Context(), lane, hash(1))
	require.EqualValues(t, 2, b.metric(t, "queen.dedup.suppressed"))
	require.Equal(t, 1, strings.Count(b.log.String(), "too small"), "one warning a minute")
	b.clock.pass(cooldown + (slack+1)*time.Second)
	b.Mark(t.Context(), lane, hash(1))
	require.EqualValues(t, 2, b.metric(t, "queen.dedup.suppressed"), "by now the window is small enough")
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.hydrations"))
}

func TestALaneThatOutgrowsTheBudgetIsBarred(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Bytes: 100_000})
	b.warm(t, lane, 1000)
	for range 30 {
		b.push(lane, random(1000))
		require.LessOrEqual(t, b.used.Load(), int64(100_000))
	}
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.suppressed"))
	require.EqualValues(t, 30_999, b.Mark(t.Context(), lane, hash(1)).Verified)
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.scans"))
	require.Equal(t, b.used.Load(), b.charged())
}

func TestTheLeastRecentlyUsedLaneGoesFirst(t *testing.T) {
	t.Parallel()
	const ids = 10_000
	b := setup(t, Config{Bytes: 230_000})
	for n := range 3 {
		b.warm(t, laneOf(n), ids)
		b.clock.pass(time.Second)
	}
	b.Mark(t.Context(), laneOf(0), hash(1))
	b.clock.pass(idle - 1)
	b.warm(t, laneOf(3), ids)
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.evicted"))
	require.Nil(t, b.find(laneOf(1)), "the one whose last mark is the longest ago")
	for _, n := range []int{0, 2, 3} {
		require.EqualValues(t, ids-1, b.Mark(t.Context(), laneOf(n), hash(1)).Verified)
	}
	require.Empty(t, b.store.took())
	require.Equal(t, b.used.Load(), b.charged())
}

func TestALaneInUseIsNotEvicted(t *testing.T) {
	t.Parallel()
	const ids = 10_000
	b := setup(t, Config{Bytes: 200_000})
	b.warm(t, laneOf(0), ids)
	b.warm(t, laneOf(1), ids)
	b.clock.pass(idle - 1)
	b.store.write(laneOf(2), random(ids))
	require.EqualValues(t, ids-1, b.Mark(t.Context(), laneOf(2), hash(1)).Verified)
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.scans"))
	require.Zero(t, b.metric(t, "queen.dedup.evicted"))
	b.clock.pass(cooldown)
	b.Mark(t.Context(), laneOf(2), hash(1))
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.evicted"))
	require.EqualValues(t, 1, b.metric(t, "queen.dedup.scans"))
}

func TestManySmallLanesStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Bytes: 50_000})
	for n := range 1000 {
		b.store.write(laneOf(n), hash(uint64(n)))
		m := b.Mark(t.Context(), laneOf(n), hash(1))
		require.EqualValues(t, -1, m.Verified)
		require.NotZero(t, m.PartitionID)
		require.LessOrEqual(t, b.used.Load(), int64(50_000))
		b.clock.pass(20 * time.Millisecond)
	}
	require.Positive(t, b.metric(t, "queen.dedup.evicted"))
	require.Less(t, b.metric(t, "queen.dedup.lanes"), int64(100))
	require.Equal(t, b.used.Load(), b.charged())
}

func BenchmarkMarkWarm(b *testing.B) {
	for name, ids := range map[string]int{"1e4": 10_000, "2.4e6": 2_400_000} {
		b.Run(name, func(b *testing.B) {
			s := setup(b, Config{Bytes: 256 << 20})
			for n := 0; n < ids; n += 1000 {
				s.store.write(lane, random(1000))
			}
			s.Mark(b.Context(), lane, hash(1))
			fresh := random(1)
			b.ReportAllocs()
			for b.Loop() {
				if m := s.Mark(b.Context(), lane, fresh); int(m.Verified) != ids-1 || len(m.Suspects) > 0 {
					b.Fatal(m)
				}
			}
		})
	}
}
