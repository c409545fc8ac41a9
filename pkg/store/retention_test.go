package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func TestOneSessionLeads(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	other := b.session()
	got, err := other.TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, got, "held by the first")
	require.Error(t, other.Unlock(t.Context()), "it holds nothing")

	require.NoError(t, b.m.Unlock(t.Context()))
	got, err = other.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, got)
}

func TestTheLockDiesWithItsSession(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.m.Close(t.Context())
	other := b.session()
	require.Eventually(t, func() bool {
		got, err := other.TryLock(t.Context())
		return err == nil && got
	}, 10*time.Second, 10*time.Millisecond)
	_, err := b.m.Plan(t.Context())
	require.Error(t, err, "a closed session leads nothing")
}

// Rule 1: age alone. Rule 2: never beyond the slowest group. The further one wins.
func TestWhatAStepDeletes(t *testing.T) {
	t.Parallel()
	const old, fresh = time.Hour, time.Minute
	type cursors map[string]int64
	cases := map[string]struct {
		ages           []time.Duration // of segments of 10 frames
		cursors        cursors
		all, completed *time.Time
		rows           int
		left           []int64
		done           bool
		event          string
	}{
		"no rule":                            {ages: []time.Duration{old, old}, cursors: cursors{"g": 19}, left: []int64{0, 10}, done: true},
		"rule 1 ignores consumption":         {ages: []time.Duration{old, old, fresh}, all: ago(10 * time.Minute), left: []int64{20}, done: true, event: "retention 20"},
		"rule 1 on stale ones only":          {ages: []time.Duration{old, old}, all: ago(10 * time.Minute), left: []int64{}, done: true, event: "retention 20"},
		"rule 1 on fresh ones only":          {ages: []time.Duration{fresh, fresh}, all: ago(10 * time.Minute), left: []int64{0, 10}, done: true},
		"rule 2 without a group":             {ages: []time.Duration{old, old}, completed: ago(10 * time.Minute), left: []int64{0, 10}, done: true},
		"rule 2 without progress":            {ages: []time.Duration{old, old}, cursors: cursors{"g": -1}, completed: ago(10 * time.Minute), left: []int64{0, 10}, done: true},
		"rule 2 up to the slowest group":     {ages: []time.Duration{old, old, old}, cursors: cursors{"g": 29, "slow": 9}, completed: ago(10 * time.Minute), left: []int64{10, 20}, done: true, event: "completed_retention 10"},
		"rule 2 counts the queue mode":       {ages: []time.Duration{old, old}, cursors: cursors{"g": 19, store.QueueModeGroup: 9}, completed: ago(10 * time.Minute), left: []int64{10}, done: true, event: "completed_retention 10"},
		"rule 2 one short of a segment":      {ages: []time.Duration{old, old}, cursors: cursors{"g": 8}, completed: ago(10 * time.Minute), left: []int64{0, 10}, done: true},
		"rule 2 with the cap in a segment":   {ages: []time.Duration{old, old}, cursors: cursors{"g": 15}, completed: ago(10 * time.Minute), left: []int64{10}, done: true, event: "completed_retention 10"},
		"rule 2 keeps what is fresh":         {ages: []time.Duration{old, fresh}, cursors: cursors{"g": 19}, completed: ago(10 * time.Minute), left: []int64{10}, done: true, event: "completed_retention 10"},
		"both: rule 2 goes further":          {ages: []time.Duration{3 * old, old, fresh}, cursors: cursors{"g": 29}, all: ago(2 * old), completed: ago(10 * time.Minute), left: []int64{20}, done: true, event: "completed_retention 20"},
		"both: rule 1 goes further":          {ages: []time.Duration{3 * old, 3 * old, old}, cursors: cursors{"g": 9}, all: ago(2 * old), completed: ago(10 * time.Minute), left: []int64{20}, done: true, event: "retention 20"},
		"one less than there is":             {ages: []time.Duration{old, old, old}, all: ago(10 * time.Minute), rows: 2, left: []int64{20}, event: "retention 20"},
		"exactly what there is":              {ages: []time.Duration{old, old, fresh}, all: ago(10 * time.Minute), rows: 2, left: []int64{20}, done: true, event: "retention 20"},
		"exactly what there is, nothing new": {ages: []time.Duration{old, old}, all: ago(10 * time.Minute), rows: 2, left: []int64{}, done: true, event: "retention 20"},
		"rule 2 bounded, more to come":       {ages: []time.Duration{old, old, old}, cursors: cursors{"g": 29}, completed: ago(10 * time.Minute), rows: 2, left: []int64{20}, event: "completed_retention 20"},
		"rule 2 bounded at the cap":          {ages: []time.Duration{old, old, old}, cursors: cursors{"g": 28}, completed: ago(10 * time.Minute), rows: 2, left: []int64{20}, done: true, event: "completed_retention 20"},
		"no rows asked for":                  {ages: []time.Duration{old, old}, all: ago(10 * time.Minute), rows: -1, left: []int64{10}, event: "retention 10"},
		"a fresh one stops the walk":         {ages: []time.Duration{old, fresh, old}, all: ago(10 * time.Minute), left: []int64{10, 20}, done: true, event: "retention 10"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			pid := b.fill("q", "p", 10, tc.ages...)
			for group, at := range tc.cursors {
				b.cursor(pid, group, at)
			}
			if tc.rows == 0 {
				tc.rows = 1000
			}
			b.mark(pid)
			s := b.step(pid, tc.all, tc.completed, tc.rows)
			require.Equal(t, tc.left, b.bases(pid))
			require.Equal(t, tc.done, s.Done)
			gone := int64(len(tc.ages) - len(tc.left))
			require.Equal(t, gone, s.Deleted)
			require.Equal(t, 10*gone, s.Messages)
			require.Equal(t, gone, s.Bytes, "blobs of one byte")
			require.Equal(t, 10*gone, *s.NewStart)
			want := []string{}
			if tc.event != "" {
				want = append(want, tc.event)
			}
			require.Equal(t, want, b.events(pid))
			if name != "a fresh one stops the walk" { // its stamps are no lane's
				require.Zero(t, b.wrong())
			}
		})
	}
}

func TestAStepOnADeletedLaneIsDone(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	gone := store.Step{Done: true}
	s := b.step(uuid.New(), ago(0), ago(0), 10)
	require.Equal(t, gone, s)
	s, err := b.m.EvictStep(t.Context(), uuid.New(), time.Now(), 10)
	require.NoError(t, err)
	require.Equal(t, gone, s)
	s, err = b.m.TxnsStep(t.Context(), uuid.New(), time.Now(), 10)
	require.NoError(t, err)
	require.Equal(t, gone, s)
}

// The sidecar goes by its own cutoff and mark; nobody holds it, and no history is
// written.
func TestWhatASidecarStepDeletes(t *testing.T) {
	t.Parallel()
	const old, fresh = time.Hour, time.Minute
	cases := map[string]struct {
		ages  []time.Duration
		rows  int
		start int64
		done  bool
	}{
		"stale ones":              {ages: []time.Duration{old, old, fresh}, rows: 100, start: 20, done: true},
		"fresh ones":              {ages: []time.Duration{fresh, fresh}, rows: 100, start: 0, done: true},
		"all of them":             {ages: []time.Duration{old, old}, rows: 100, start: 20, done: true},
		"one more than asked for": {ages: []time.Duration{old, old, old}, rows: 2, start: 20},
		"just as many":            {ages: []time.Duration{old, old, fresh}, rows: 2, start: 20, done: true},
		"no rows asked for":       {ages: []time.Duration{old, old}, rows: 0, start: 10},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			pid := b.fill("q", "p", 10, tc.ages...)
			b.cursor(pid, "slow", -1)
			s, err := b.m.TxnsStep(t.Context(), pid, *ago(10 * time.Minute), tc.rows)
			require.NoError(t, err)
			require.Equal(t, store.Step{
				Deleted: tc.start / 10, Messages: tc.start, Bytes: 16 * tc.start, NewStart: &tc.start, Done: tc.done,
			}, s)
			require.Equal(t, tc.start, b.lane(pid).Txns)
			require.Zero(t, b.lane(pid).Start)
			require.Equal(t, int64(len(tc.ages)), b.count(`SELECT count(*) FROM queen.log_segments`))
			require.Empty(t, b.events(pid))
			require.Zero(t, b.wrong())
		})
	}
}
