package retention

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// work has a backlog of steps of 10 ms, and reports how many were made in a phase.
func (b *bench) work(t *testing.T, q fakeQueue, step, phase string) (steps int) {
	t.Helper()
	b.lanes(b.queue(q), 1000, 1, 2*time.Hour)
	b.db.cost[step] = 10 * time.Millisecond
	report, err := b.Once(t.Context())
	require.NoError(t, err)
	require.True(t, report.Phase(phase).Unfinished)
	require.InDelta(t, PhaseTime, report.Phase(phase).Elapsed, float64(2*RestMost))
	return len(b.db.named(step))
}

func TestBacklogGivesWayToOthers(t *testing.T) {
	t.Parallel()
	retained := fakeQueue{all: time.Hour}
	flatOut := int(PhaseTime / (10 * time.Millisecond))
	for name, c := range map[string]struct {
		others      func(time.Time) bool
		least, most int
	}{
		"alone":                     {nil, flatOut, flatOut},
		"others at work":            {func(time.Time) bool { return true }, flatOut/(1+RestFactor) - 1, flatOut/(1+RestFactor) + 2},
		"others seen now and then":  {func(now time.Time) bool { return now.UnixMilli()/100%5 == 0 }, flatOut/(1+RestFactor) - 1, flatOut / 2},
		"others that left long ago": {func(now time.Time) bool { return now.UnixMilli() < bubbleStart+100 }, flatOut/(1+RestFactor) + 20, flatOut - 20},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, b *bench) {
				b.db.others = c.others
				steps := b.work(t, retained, "RetentionStep", PhaseRetention)
				require.GreaterOrEqual(t, steps, c.least)
				require.LessOrEqual(t, steps, c.most)
			})
		})
	}
}

// bubbleStart is when time begins in a bubble, in milliseconds.
const bubbleStart = 946684800000

func TestEvictionsDoNotRest(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.others = func(time.Time) bool { return true }
		steps := b.work(t, fakeQueue{maxWait: time.Hour}, "EvictStep", PhaseEviction)
		require.Equal(t, int(PhaseTime/(10*time.Millisecond)), steps)
		require.Empty(t, b.db.named("OthersAtWork"))
	})
}

func TestRestIsNeverLong(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.others = func(time.Time) bool { return true }
		b.lanes(b.queue(fakeQueue{all: time.Hour}), 2, 1, 2*time.Hour)
		b.db.cost["RetentionStep"] = 900 * time.Millisecond
		_, err := b.Once(t.Context())
		require.NoError(t, err)
		steps := b.db.named("RetentionStep")
		require.Equal(t, RestMost, steps[1].at.Sub(steps[0].at)-900*time.Millisecond)
	})
}

func TestPhaseThatCannotAskGoesOn(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.hook = func(call string) error {
			if call == "OthersAtWork" {
				return errBroken
			}
			return nil
		}
		require.Equal(t, int(PhaseTime/(10*time.Millisecond)), b.work(t, fakeQueue{all: time.Hour}, "RetentionStep", PhaseRetention))
	})
}
