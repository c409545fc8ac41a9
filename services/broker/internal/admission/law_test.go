package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// newTestLaw has a budget between 20 and 30.
func newTestLaw(t *testing.T, init int) *law {
	t.Helper()
	cfg, err := Config{Slots: 30, Min: 20, Init: init}.resolve()
	require.NoError(t, err)
	l := newLaw(cfg)
	return &l
}

// busy is a tick in which the budget was used up; the flush cycle takes 10 ms.
func busy(oldest time.Duration) sight {
	return sight{exhausted: true, oldest: oldest, trains: trainSight{count: 50, commits: 500, cycle: 10 * ms}}
}

func TestBoundsFollowFromThePool(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cfg            Config
		min, init, max int
	}{
		"default pool":    {Config{}, 21, 21, 32},
		"large pool":      {Config{Slots: 144}, 96, 96, 128},
		"larger pool":     {Config{Slots: 240}, 128, 128, 128},
		"medium pool":     {Config{Slots: 44}, 29, 29, 44},
		"small pool":      {Config{Slots: 8}, 8, 8, 8},
		"two slots":       {Config{Slots: 2}, 2, 2, 2},
		"one slot":        {Config{Slots: 1}, 1, 1, 1},
		"given":           {Config{Slots: 30, Min: 5, Init: 10, Max: 20}, 5, 10, 20},
		"above the pool":  {Config{Slots: 30, Min: 40, Init: 50, Max: 60}, 30, 30, 30},
		"init out of it":  {Config{Slots: 30, Min: 10, Init: 5, Max: 20}, 10, 10, 20},
		"max below floor": {Config{Slots: 30, Max: 10}, 10, 10, 10},
	} {
		cfg, err := tc.cfg.resolve()
		require.NoError(t, err)
		require.Equal(t, [3]int{tc.min, tc.init, tc.max}, [3]int{cfg.Min, cfg.Init, cfg.Max}, name)
	}
}

func TestBudgetGrowsToItsMaximumWhileItIsUsedUp(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 20)
	require.Equal(t, []decision{{grow, "", 20, 22}}, l.step(busy(15*ms)))
	require.Empty(t, l.step(sight{trains: busy(0).trains}), "nobody missed a slot")
	for range 10 {
		l.step(busy(15 * ms))
	}
	require.Equal(t, 30, l.budget)
	require.Empty(t, l.step(busy(15*ms)))
}

func TestBudgetShrinksWhenTransactionsWaitSeveralCycles(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 30)
	require.Empty(t, l.step(busy(40*ms)), "four cycles are allowed")
	require.Empty(t, l.step(busy(41*ms)), "one tick may be a hiccup")
	require.Equal(t, []decision{{shrink, "", 30, 27}}, l.step(busy(41*ms)))
	for range 20 {
		l.step(busy(41 * ms))
	}
	require.Equal(t, 20, l.budget, "not below the floor")
}

func TestBudgetNeverShrinksOnAWideningCycle(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 30)
	l.step(busy(15 * ms))
	wide := busy(time.Second)
	for cycle := 13 * ms; cycle < 200*ms; cycle += cycle * 3 / 10 {
		wide.trains.cycle = cycle
		require.Empty(t, l.step(wide), cycle)
	}
	for range 50 { // once it stays wide it is the usual one
		l.step(wide)
	}
	require.Equal(t, 20, l.budget)
}

func TestNothingIsConcludedWithoutACycle(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 30)
	l.step(busy(15 * ms))
	for range 10 { // a disk that does not answer at all
		require.Empty(t, l.step(sight{exhausted: true, oldest: time.Second, trains: trainSight{commits: 1, count: 1}}))
	}
}

// More than 24 transactions at once are too many. The law finds the level, stays
// there, and comes back less and less often to see whether that has changed.
func TestBudgetSettlesBelowTheLevelThatIsTooHigh(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 20)
	var changes, last, steps int
	run := func(ticks int, tooMany func(int) bool) {
		changes, steps = 0, 0
		for i := range ticks {
			age := 15 * ms
			if tooMany(l.budget) {
				age = 50 * ms
			}
			if len(l.step(busy(age))) > 0 {
				changes++
				last = i
			}
			if tooMany(l.budget) {
				steps++
			}
		}
	}
	above := func(budget int) bool { return budget > 24 }
	run(100, above)
	run(1000, above)
	require.Less(t, changes, 60, "last in tick %d", last)
	require.Less(t, steps, 60, "ticks above the level")
	require.InDelta(t, 24, l.budget, 3)
	run(300, func(int) bool { return false })
	require.Equal(t, 30, l.budget, "it grows again when the reason is gone")
}

func TestNoSyncPinsTheBudgetAndASignalFreesIt(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 20)
	fast, slow := sight{commitTime: 599 * time.Microsecond}, sight{commitTime: 600 * time.Microsecond}
	require.Empty(t, l.step(fast))
	require.Empty(t, l.step(fast))
	require.Empty(t, l.step(sight{}), "too few commits to tell")
	require.Empty(t, l.step(slow))
	require.Empty(t, l.step(fast))
	require.Empty(t, l.step(fast))
	require.Equal(t, []decision{{pin, "", 20, 30}}, l.step(fast), "64 do not fit")
	late := busy(time.Second)
	late.commitTime = fast.commitTime
	for range 10 {
		require.Empty(t, l.step(late))
	}
	require.Empty(t, l.step(slow))
	require.Empty(t, l.step(slow))
	require.Equal(t, []decision{{unpin, "", 30, 20}}, l.step(slow))
}

func capped(done int) sight {
	s := sight{}
	s.lanes[Push] = laneSight{capped: true, done: done}
	return s
}

func TestARaisedCapStaysIfMoreCompletes(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 20)
	require.Equal(t, []decision{{raise, "push", 20, 22}}, l.step(capped(1000)))
	require.Equal(t, []decision{{keep, "push", 22, 22}}, l.step(capped(1050)))
	require.Equal(t, []decision{{raise, "push", 22, 24}}, l.step(capped(1050)))
	require.Equal(t, []decision{{revert, "push", 24, 22}}, l.step(capped(1102)), "not 5 %% more")
	for range stillTicks {
		require.Empty(t, l.step(capped(1102)))
	}
	require.Equal(t, []decision{{raise, "push", 22, 24}}, l.step(capped(1102)))
	require.Equal(t, 20, l.lanes[Ack].cap, "every lane has its own")
}

func TestCapsEndAtTheLargestBudget(t *testing.T) {
	t.Parallel()
	l := newTestLaw(t, 20)
	for done := 1000; done < 1_000_000; done += done / 10 {
		l.step(capped(done))
	}
	require.Equal(t, 30, l.lanes[Push].cap)
	require.Empty(t, l.step(capped(1)))
}

func TestPopCapsAreJudgedByTheOldestReadyLane(t *testing.T) {
	t.Parallel()
	before := laneSight{capped: true, aged: true, age: 100 * ms, depth: 1000, done: 1000}
	for name, tc := range map[string]struct {
		after laneSight
		want  string
	}{
		"younger":                   {laneSight{age: 90 * ms, depth: 1000, done: 500}, keep},
		"not much younger":          {laneSight{age: 91 * ms, depth: 5000, done: 5000}, revert},
		"nobody minds":              {laneSight{age: 10 * ms, depth: 1000, done: 500}, keep},
		"worse":                     {laneSight{age: 101 * ms, depth: 1199, done: 2000}, revert},
		"worse under more load":     {laneSight{age: 200 * ms, depth: 1200, done: 950}, hold},
		"worse with fewer visits":   {laneSight{age: 200 * ms, depth: 1200, done: 949}, revert},
		"the same":                  {laneSight{age: 100 * ms, depth: 9000, done: 9000}, revert},
		"nothing is ready any more": {laneSight{}, keep},
	} {
		l := newTestLaw(t, 20)
		first, second := sight{}, sight{}
		first.lanes[Pop], second.lanes[Pop] = before, tc.after
		second.lanes[Pop].aged = true
		require.Equal(t, []decision{{raise, "pop", 20, 22}}, l.step(first), name)
		made := l.step(second)
		require.Len(t, made, 1, name)
		require.Equal(t, tc.want, made[0].what, name)
		if tc.want == hold { // and is decided later
			second.lanes[Pop].age = 90 * ms
			require.Equal(t, []decision{{keep, "pop", 22, 22}}, l.step(second))
		}
	}
}

func TestCommitsCloserThanTheGapAreOneTrain(t *testing.T) {
	t.Parallel()
	tr := trains{gap: 300 * time.Microsecond}
	now := time.Unix(0, 0)
	for range 4 {
		for range 10 {
			tr.commit(now)
			now = now.Add(300 * time.Microsecond)
		}
		now = now.Add(7 * ms)
	}
	require.Equal(t, trainSight{count: 4, commits: 40, cycle: 10 * ms}, tr.take())
	tr.commit(now)
	require.Equal(t, trainSight{count: 1, commits: 1}, tr.take(), "one cycle is too few")
	tr.commit(now.Add(301 * time.Microsecond))
	tr.commit(now.Add(602 * time.Microsecond))
	require.Equal(t, trainSight{count: 2, commits: 2, cycle: 301 * time.Microsecond}, tr.take())
}
