package retention

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestStepsGoOnUntilTheLaneIsDone(t *testing.T) {
	bubble(t, Config{BatchSize: 10}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		lanes := b.lanes(q, 3, 25, 2*time.Hour)
		lanes[1].txns = ago(15, time.Hour)
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, q.left())
		require.Empty(t, lanes[1].txns)
		var order []uuid.UUID
		for _, c := range b.db.named("RetentionStep") {
			order = append(order, c.lane)
		}
		require.Equal(t, []uuid.UUID{
			lanes[0].id, lanes[0].id, lanes[0].id, lanes[1].id, lanes[1].id, lanes[1].id, lanes[2].id, lanes[2].id, lanes[2].id,
		}, order, "ascending, each until it is done")
		require.EqualValues(t, 75, report.Phase(PhaseRetention).Segments)
		require.False(t, report.Phase(PhaseRetention).Unfinished)
	})
}

func TestStepThatDeletesNothingEndsItsLane(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		l := b.lanes(q, 1, 5, 2*time.Hour)[0]
		l.consumed, l.half = 0, true
		_, err := b.Once(t.Context())
		require.NoError(t, err)
		require.Len(t, b.db.named("RetentionStep"), 1)
	})
}

func TestPhasesYieldAndGoOn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		lanes := b.lanes(q, 100, 1, 2*time.Hour)
		for _, l := range lanes {
			l.txns = ago(1, time.Hour)
		}
		b.db.cost["RetentionStep"], b.db.cost["TxnsStep"] = 100*time.Millisecond, 100*time.Millisecond
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		for _, name := range []string{PhaseRetention, PhaseTxns} {
			p := report.Phase(name)
			require.True(t, p.Unfinished, name)
			require.EqualValues(t, 20, p.Lanes, name)
			require.Equal(t, PhaseTime, p.Elapsed, name)
		}
		b.run(18 * time.Second) // four more cycles, each at once after the other
		require.Zero(t, q.left())
		require.Equal(t, []time.Duration{4 * time.Second, 8 * time.Second, 12 * time.Second, 16 * time.Second, 21 * time.Second},
			since(b.began, b.db.named("Plan"))[1:])
	})
}

func TestOnePageBeforeAPhaseYieldsHoweverSlow(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.cost["RetentionPage"], b.db.cost["RetentionStep"] = 3*time.Second, 3*time.Second
		q := b.queue(fakeQueue{all: time.Hour})
		b.lanes(q, 5, 1, 2*time.Hour)
		b.run(time.Minute)
		require.Zero(t, q.left())
	})
}

func TestBacklogOfOneQueueDoesNotHoldUpTheOthers(t *testing.T) {
	bubble(t, Config{BatchSize: 10}, func(t *testing.T, b *bench) {
		b.db.cost["RetentionStep"] = 20 * time.Millisecond
		big := b.queue(fakeQueue{name: "big", all: time.Hour})
		b.lanes(big, 10, 4000, 2*time.Hour)
		var small []*fakeQueue
		for range 4 {
			q := b.queue(fakeQueue{name: "small", all: time.Hour})
			b.lanes(q, 3, 5, 2*time.Hour)
			small = append(small, q)
		}
		_, err := b.Once(t.Context())
		require.NoError(t, err)
		for _, q := range small {
			require.Zero(t, q.left())
		}
		require.NotZero(t, big.left())
		b.run(3 * time.Minute)
		require.Zero(t, big.left())
	})
}

func TestNextCycleBeginsBehindTheQueueThatWasCutShort(t *testing.T) {
	bubble(t, Config{BatchSize: 10}, func(t *testing.T, b *bench) {
		b.db.cost["RetentionStep"] = time.Second // beyond the time of a turn
		for range 6 {
			b.lanes(b.queue(fakeQueue{all: time.Hour}), 1, 1000, 2*time.Hour)
		}
		b.run(7 * time.Second)
		served := map[uuid.UUID]int{}
		for _, c := range b.db.named("RetentionStep") {
			served[c.lane]++
		}
		require.Len(t, served, 6, "%v", served)
	})
}

func TestLockedLaneIsCountedAndLeftToTheNextCycle(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		lanes := b.lanes(q, 3, 5, 2*time.Hour)
		lanes[0].locked = true
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, report.Phase(PhaseRetention).TimedOut)
		require.Equal(t, 5, q.left())
		require.Len(t, b.db.named("RetentionStep"), 3, "not tried twice in one cycle")
		lanes[0].locked = false
		_, err = b.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, q.left())
	})
}

func TestLockedLanesDoNotUseUpTheTimeOfTheOthers(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		lanes := b.lanes(q, 20, 5, 2*time.Hour)
		for _, l := range lanes[:4] { // each costs a second
			l.locked = true
		}
		b.run(14 * time.Second) // three cycles
		require.Equal(t, 4*5, q.left())
	})
}

func TestHeldLaneThatWasLockedIsTriedAgain(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		l := b.lanes(q, 1, 5, 2*time.Hour)[0]
		go func() {
			time.Sleep(20 * time.Minute) // by now it is looked at every ten minutes
			b.db.mu.Lock()
			l.consumed, l.locked = 5, true
			b.db.mu.Unlock()
			time.Sleep(10 * time.Minute)
			b.db.mu.Lock()
			l.locked = false
			b.db.mu.Unlock()
		}()
		b.run(30*time.Minute + HeldMax + IntervalDefault)
		require.Zero(t, q.left())
	})
}

func TestBrokenLaneDoesNotHoldUpTheOthers(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour, maxWait: 3 * time.Hour})
		lanes := b.lanes(q, 5, 5, 4*time.Hour)
		lanes[0].broken = errBroken
		report, err := b.Once(t.Context())
		require.ErrorIs(t, err, errBroken)
		require.ErrorContains(t, err, "partition "+lanes[0].id.String()+` of queue "q"`)
		require.Equal(t, 5, q.left())
		require.EqualValues(t, 1, report.Phase(PhaseRetention).Failed)
		require.EqualValues(t, 1, report.Phase(PhaseEviction).Failed)
		require.NotEmpty(t, b.db.named("PurgeMetrics"), "the later phases run")
	})
}

// errFull may concern every lane.
var errFull = &pgconn.PgError{Code: "53100", Message: "disk full"}

func TestPhaseIsGivenUpWhenTheDatabaseMayBeTheReason(t *testing.T) {
	t.Parallel()
	for lanes, gone := range map[int]bool{laneErrors - 1: true, laneErrors: false} {
		t.Run("", func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, b *bench) {
				q := b.queue(fakeQueue{all: time.Hour})
				for _, l := range b.lanes(q, lanes, 5, 4*time.Hour) {
					l.broken = errFull
				}
				b.lanes(q, 1, 5, 4*time.Hour)
				b.db.metrics = 1
				report, err := b.Once(t.Context())
				require.ErrorIs(t, err, errFull)
				require.Equal(t, gone, q.left() == 5*lanes)
				require.EqualValues(t, lanes, report.Phase(PhaseRetention).Failed)
				require.Zero(t, b.db.metrics, "the other phases run")
			})
		})
	}
}

func TestErrorsThatAreNotInARowDoNotEndAPhase(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		for i, l := range b.lanes(q, 4*laneErrors, 5, 4*time.Hour) {
			if i%2 == 0 {
				l.broken = errFull
			}
		}
		_, err := b.Once(t.Context())
		require.ErrorIs(t, err, errFull)
		require.Equal(t, 2*laneErrors*5, q.left())
	})
}

func TestManyBrokenLanesHoldUpNobody(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		for _, l := range b.lanes(q, pageLanes+100, 1, 4*time.Hour) {
			l.broken = errBroken
		}
		free := b.lanes(q, 1, 5, 2*time.Hour)[0] // behind them all
		next := b.queue(fakeQueue{all: time.Hour})
		b.lanes(next, 1, 5, 2*time.Hour)
		b.db.dead, b.db.metrics = 3, 3
		report, err := b.Once(t.Context())
		require.ErrorIs(t, err, errBroken)
		require.Empty(t, free.segments)
		require.Zero(t, next.left())
		require.Zero(t, b.db.dead+b.db.metrics)
		require.EqualValues(t, pageLanes+100, report.Phase(PhaseRetention).Failed)
	})
}

func TestManyLockedLanesDoNotStarveTheOneBehind(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		locked := b.lanes(q, pageLanes+100, 1, 4*time.Hour)
		for _, l := range locked {
			l.locked = true
		}
		free := b.lanes(q, 1, 5, 2*time.Hour)[0]
		b.run(5 * time.Minute)
		require.Empty(t, free.segments)
		for _, l := range locked {
			l.locked = false
		}
		b.run(time.Second)
		require.Zero(t, q.left())
	})
}

func TestQueueOfLockedLanesLeavesRunOnceToTheNext(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		for _, l := range b.lanes(b.queue(fakeQueue{all: time.Hour}), 20, 1, 2*time.Hour) {
			l.locked = true
		}
		b.lanes(b.queue(fakeQueue{maxWait: time.Hour}), 1, 1, 2*time.Hour) // due, and would have its turn
		next := b.queue(fakeQueue{all: time.Hour})
		b.lanes(next, 3, 5, 2*time.Hour)
		_, err := b.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, next.left())
	})
}

func TestLaneThatFailsIsLeftAloneForLongerAndLonger(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		l := b.lanes(q, 1, 5, 2*time.Hour)[0]
		l.broken = errBroken
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

func TestStepsWaitLessBehindALockedLane(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		for _, l := range b.lanes(q, 3, 1, 2*time.Hour) {
			l.locked, l.txns = true, l.segments
		}
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		for _, name := range []string{PhaseRetention, PhaseTxns} {
			require.Equal(t, store.StepLockWait+2*HastyWait, report.Phase(name).Elapsed, name)
		}
		require.Len(t, b.db.named("SetLockWait"), 4, "each phase waits for its first one again")
	})
}

func TestLanesPutAsideAreBounded(t *testing.T) {
	t.Parallel()
	a, now := newAside(HeldMin, HeldMax), time.Now()
	for i := range AsideLanes {
		a.put(numbered(i%3), numbered(i), now)
	}
	require.Equal(t, AsideLanes, a.n)
	a.put(numbered(0), numbered(AsideLanes), now)
	require.False(t, a.has(numbered(0), numbered(AsideLanes)), "no room")
	a.put(numbered(0), numbered(0), now)
	require.Empty(t, a.due(numbered(0), now.Add(HeldMin-1)))
	require.Len(t, a.due(numbered(0), now.Add(HeldMin)), AsideLanes/3, "but the one that failed twice")
	require.Equal(t, numbered(0), a.due(numbered(0), now.Add(2*HeldMin))[AsideLanes/3], "the longest overdue first")
	a.drop(numbered(0), numbered(0))
	a.drop(numbered(0), numbered(0))
	require.Equal(t, AsideLanes-1, a.n)
	a.put(numbered(0), numbered(AsideLanes), now)
	require.True(t, a.has(numbered(0), numbered(AsideLanes)))
	a.keep(func(queue uuid.UUID) bool { return queue == numbered(1) })
	require.Len(t, a.queues[numbered(1)], a.n)
	require.Len(t, a.queues, 1)
}

func TestQueuesThatHaveNothingDueAreNotPutAside(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{all: time.Hour})
		b.lanes(q, 1, 5, 2*time.Hour)[0].broken = errBroken
		l := b.newLeader()
		_, err := l.cycle(t.Context())
		require.Error(t, err)
		require.Equal(t, 1, l.retention.aside.n)
		q.all = 0
		_, err = l.cycle(t.Context())
		require.NoError(t, err)
		require.Zero(t, l.retention.aside.n)
	})
}

func TestSlowStepsBecomeSmaller(t *testing.T) {
	t.Parallel()
	p := newPace(1000)
	p.took(StepTime)
	require.Equal(t, 1000, p.rows)
	p.took(StepTime + 1)
	require.Equal(t, 500, p.rows)
	p.timedOut()
	require.Equal(t, 62, p.rows)
	p.took(StepTime / 4)
	require.Equal(t, 62, p.rows)
	p.took(StepTime/4 - 1)
	require.Equal(t, 124, p.rows)
	for range 10 {
		p.took(0)
	}
	require.Equal(t, 1000, p.rows, "never above the batch size")
	for range 20 {
		p.timedOut()
	}
	require.Equal(t, 1, p.rows, "always at least one")
}

func TestSlowPageLeavesItsQueueToTheNextCycle(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		slow := b.queue(fakeQueue{all: time.Hour})
		b.lanes(slow, 1, 1, 2*time.Hour)
		b.db.hook = func(call string) error {
			if call == "RetentionPage" {
				return errSlow
			}
			return nil
		}
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, report.Phase(PhaseRetention).TimedOut)
	})
}
