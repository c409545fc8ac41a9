package retention

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/store"
)

func TestHeldLanesAreLookedAtLessAndLess(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		l := b.lanes(q, 1, 5, 2*time.Hour)[0]
		l.consumed, l.half = 0, true // each look makes a step, which deletes nothing
		b.run(40 * time.Minute)
		var waits []time.Duration
		steps := since(b.began, b.db.named("RetentionStep"))
		for i := range steps[1:] {
			waits = append(waits, steps[i+1]-steps[i])
		}
		require.Equal(t, []time.Duration{
			5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second,
			320 * time.Second, 10 * time.Minute, 10 * time.Minute,
		}, waits)
	})
}

func TestLaneNobodyHasReadIsHeldWithoutAStep(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		b.lanes(q, 1500, 1, 2*time.Hour)
		b.run(time.Minute)
		require.Empty(t, b.db.named("RetentionStep"))
		require.Equal(t, 1500, q.left())
		require.Contains(t, b.logged("msg=swept")[0], "backed_off=1500")
	})
}

func TestDeletionMakesARangeLookedAtSoonAgain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		lanes := b.lanes(q, 2, 5, 2*time.Hour)
		for _, l := range lanes {
			l.consumed, l.half = 0, true
		}
		go func() {
			time.Sleep(11 * time.Minute) // after the look at 635 s; the next is at 1235 s
			b.db.mu.Lock()
			lanes[0].consumed = 2
			b.db.mu.Unlock()
		}()
		b.run(21 * time.Minute)
		looks := map[uuid.UUID][]time.Duration{}
		for _, c := range b.db.named("RetentionStep") {
			if at := c.at.Sub(b.began); at > 1200*time.Second {
				looks[c.lane] = append(looks[c.lane], at)
			}
		}
		require.Equal(t, []time.Duration{1235 * time.Second, 1240 * time.Second, 1250 * time.Second}, looks[lanes[1].id], "its neighbour")
		require.Equal(t, []time.Duration{1235 * time.Second, 1240 * time.Second, 1245 * time.Second, 1250 * time.Second}, looks[lanes[0].id], "fresh at 1240, one range with its neighbour from 1245 on")
		require.Len(t, lanes[0].segments, 3)
	})
}

func TestFreshLanesDoNotWaitForHeldOnes(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		b.lanes(q, 2500, 1, 2*time.Hour) // held
		b.db.cost["RetentionPage"] = 100 * time.Millisecond
		go func() {
			time.Sleep(20 * time.Minute)
			fresh := b.lanes(q, 1, 3, time.Hour-2*time.Second)[0] // due in two seconds
			b.db.mu.Lock()
			fresh.consumed = 3
			b.db.mu.Unlock()
		}()
		b.run(20*time.Minute + 6*time.Second)
		require.Equal(t, 2500, q.left())
		require.Less(t, len(b.db.named("RetentionPage")), 250+3*8+10, "one a cycle for the fresh ones, and eight looks at each range")
	})
}

func TestRuleOneDoesNotWaitForHeldRanges(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour, all: 3 * time.Hour})
		b.lanes(q, 1, 1, 2*time.Hour) // held for another hour
		gone := time.Duration(0)
		go func() {
			for gone == 0 {
				time.Sleep(time.Second)
				b.db.mu.Lock()
				if q.left() == 0 {
					gone = time.Since(b.began)
				}
				b.db.mu.Unlock()
			}
		}()
		b.run(time.Hour + 10*time.Second)
		synctest.Wait()
		require.InDelta(t, time.Hour, gone, float64(IntervalDefault+2*time.Second))
	})
}

func TestReleasedLanesAreFoundWithinTenMinutes(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		lanes := b.lanes(q, 2200, 2, 2*time.Hour)
		go func() {
			time.Sleep(33 * time.Minute) // the abandoned group is deleted
			b.db.mu.Lock()
			for _, l := range lanes {
				l.consumed = 2
			}
			b.db.mu.Unlock()
		}()
		b.run(33*time.Minute + HeldMax + IntervalDefault)
		require.Zero(t, q.left())
	})
}

func TestLookingYieldsAndGoesOn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		b.lanes(q, 9000, 1, 2*time.Hour)
		b.db.cost["RetentionPage"] = 100 * time.Millisecond
		l := b.newLeader()
		report, err := l.cycle(t.Context())
		require.NoError(t, err)
		p := report.Phase(PhaseRetention)
		require.True(t, p.Unfinished)
		require.Equal(t, LookTime, p.Elapsed)
		require.EqualValues(t, 5000, p.Held)
		time.Sleep(time.Second)
		report, err = l.cycle(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 9000, report.Phase(PhaseRetention).Held)
		b.run(9 * time.Second)
		require.Equal(t, []time.Duration{0, 5 * time.Second}, since(b.began.Add(2*time.Second), b.db.named("Plan"))[2:], "no hurry when nothing is deleted")
	})
}

func TestRangesOfQueuesWithNothingDueAreForgotten(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		b.lanes(q, 10, 1, 2*time.Hour)
		l := b.newLeader()
		_, err := l.cycle(t.Context())
		require.NoError(t, err)
		require.Len(t, l.held, 1)
		q.completed, q.all = 0, time.Hour
		_, err = l.cycle(t.Context())
		require.NoError(t, err)
		require.Zero(t, q.left())
		require.Zero(t, l.heldLanes())
		_, err = l.cycle(t.Context())
		require.NoError(t, err)
		require.Empty(t, l.held)
	})
}

func TestCompletedWindowBeyondTheOtherHoldsNothing(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: 3 * time.Hour, all: time.Hour})
		b.lanes(q, 10, 1, 2*time.Hour)
		l := b.newLeader()
		_, err := l.cycle(t.Context())
		require.NoError(t, err)
		require.Zero(t, q.left())
		require.Len(t, b.db.named("RetentionPage"), 1)
	})
}

// key is a place in the order, n seconds after the beginning.
func key(n int) store.LaneKey {
	return store.LaneKey{At: time.Unix(int64(n), 0), ID: numbered(n)}
}

// TestEveryDueLaneIsLookedAtInTime has lanes come and go at random, and checks that
// none that is due is left alone for much longer than HeldMax.
func TestEveryDueLaneIsLookedAtInTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		// The bubble has a clock of its own, but a test cannot fail from within.
		var problem string
		cycles := drawCycles(rt)
		synctest.Test(t, func(*testing.T) { problem = walkHeld(cycles) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// heldCycle is what happens before one look: so many more lanes may be due, a lane
// comes or goes, and time passes.
type heldCycle struct {
	more, lane int
	arrives    bool
	pause      time.Duration
}

func drawCycles(t *rapid.T) []heldCycle {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) heldCycle {
		return heldCycle{
			more:    rapid.IntRange(0, 300).Draw(t, "more"),
			lane:    rapid.IntRange(0, 1<<20).Draw(t, "lane"),
			arrives: rapid.IntRange(0, 3).Draw(t, "arrives") > 0,
			pause:   time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second,
		}
	}), 1, 200).Draw(t, "cycles")
}

func walkHeld(cycles []heldCycle) (problem string) {
	held := &heldLanes{}
	seen := map[int]time.Time{} // the due lanes, and when they were looked at
	cutoff := 1
	for _, c := range cycles {
		cutoff += c.more
		// Anywhere: a repaired watermark may be of any age.
		if lane := c.lane % cutoff; !c.arrives {
			delete(seen, lane)
		} else if _, ok := seen[lane]; !ok {
			seen[lane] = time.Now()
		}
		lookAtHeld(held, seen, cutoff)
		for lane, at := range seen {
			if time.Since(at) > HeldMax+time.Minute {
				return fmt.Sprintf("lane %d was left alone for %s", lane, time.Since(at))
			}
		}
		for i := range held.ranges {
			if !before(held.from(i), held.ranges[i].to) {
				return fmt.Sprintf("range %d is empty or out of order", i)
			}
		}
		time.Sleep(c.pause)
	}
	return ""
}

// lookAtHeld plays one cycle over lanes that are all held.
func lookAtHeld(held *heldLanes, seen map[int]time.Time, cutoff int) {
	now := time.Unix(int64(cutoff), 0)
	way := newHeldCourse(held, store.QueuePlan{Completed: &now})
	for {
		s, ok := way.next()
		if !ok {
			return
		}
		var page store.Page
		for n := 0; n < cutoff && page.Examined < pageLanes; n++ {
			if _, due := seen[n]; !due || !before(s.after, key(n)) || s.until != (store.LaneKey{}) && before(s.until, key(n)) {
				continue
			}
			page.Examined, page.Last = page.Examined+1, key(n)
			seen[n] = time.Now()
		}
		way.seen(page, page.Examined)
	}
}

// TestNoRangeIsLeftOut has time for fewer looks than fall due.
func TestNoRangeIsLeftOut(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		b.lanes(q, 12000, 1, 2*time.Hour)
		b.db.cost["RetentionPage"] = 100 * time.Millisecond // five ranges a cycle
		b.run(19 * time.Second)
		require.Contains(t, b.logged("msg=swept")[2], "backed_off=12000", "all are found before any is looked at again")
		q.lanes[11999].consumed = 1 // in the range that was found last
		b.run(30 * time.Second)
		require.Equal(t, 11999, q.left())
	})
}

// hold makes the ranges of so many held lanes.
func hold(lanes int) *heldLanes {
	h := &heldLanes{}
	cutoff := time.Unix(int64(lanes), 0)
	way := newHeldCourse(h, store.QueuePlan{Completed: &cutoff})
	for at := 0; ; {
		if _, ok := way.next(); !ok {
			return h
		}
		n := min(pageLanes, lanes-at)
		at += n
		way.seen(store.Page{Examined: n, Last: key(at)}, n)
	}
}

// TestMemoryOfHeldLanes holds a leader to about 0.1 bytes for each held lane.
func TestMemoryOfHeldLanes(t *testing.T) {
	t.Parallel()
	const lanes = 1_000_000
	h := hold(lanes)
	perLane := float64(cap(h.ranges)) * float64(unsafe.Sizeof(heldRange{})) / lanes
	t.Logf("%d ranges, %.3f bytes a lane", len(h.ranges), perLane)
	require.EqualValues(t, lanes, h.lanes())
	require.Less(t, perLane, 0.13)
}

// TestRangesOfATrickleStayFew adds a few held lanes in every cycle for a day.
func TestRangesOfATrickleStayFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &heldLanes{}
		total := 0
		for range 24 * 60 * 12 {
			now := time.Now()
			for i := h.due(now); i >= 0; i = h.due(now) {
				h.settle(i, h.ranges[i].lanes, now)
			}
			total += 3
			h.add(store.LaneKey{At: now, ID: uuid.Nil}, 3, now)
			time.Sleep(IntervalDefault)
		}
		require.EqualValues(t, total, h.lanes())
		t.Logf("%d ranges of %d lanes", len(h.ranges), total)
		require.Less(t, len(h.ranges), 2*total/pageLanes+40)
	})
}

func BenchmarkHeldLanes(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		hold(1_000_000)
	}
}
