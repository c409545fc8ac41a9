package retention

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
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

func TestHeldLaneThatWasLockedIsTriedAgainSoon(t *testing.T) {
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
		b.run(30*time.Minute + 15*time.Second)
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

func TestPhaseIsGivenUpWhenEveryLaneFails(t *testing.T) {
	t.Parallel()
	for lanes, gone := range map[int]bool{laneErrors: true, laneErrors + 1: false} {
		t.Run("", func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, b *bench) {
				q := b.queue(fakeQueue{all: time.Hour})
				for _, l := range b.lanes(q, lanes, 5, 4*time.Hour) {
					l.broken = errBroken
				}
				b.lanes(q, 1, 5, 4*time.Hour)
				_, err := b.Once(t.Context())
				require.ErrorIs(t, err, errBroken)
				require.Equal(t, gone, q.left() == 5*lanes)
			})
		})
	}
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
