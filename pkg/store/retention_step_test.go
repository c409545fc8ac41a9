package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

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

// A step ends also at 32 MiB of blobs: the one that reaches it still goes.
func TestAStepIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	const mib = 1 << 20
	large := func(lane string, sizes ...int) uuid.UUID {
		ages := make([]time.Duration, len(sizes))
		for i := range ages {
			ages[i] = time.Hour
		}
		pid := b.fill("q", lane, 1, ages...)
		for i, size := range sizes {
			b.exec(`UPDATE queen.log_segments SET blob = convert_to(repeat('x', $3), 'UTF8') WHERE partition_id = $1 AND base_offset = $2`, pid, i, size)
		}
		return pid
	}
	cases := []struct {
		name  string
		sizes []int
		gone  int64
		bytes int64
	}{
		{"one above the bound", []int{33 * mib, 1}, 1, 33 * mib},
		{"two that make it exactly", []int{16 * mib, 16 * mib, 1}, 2, 32 * mib},
		{"one byte below it", []int{16 * mib, 16*mib - 1, 1, 1}, 3, 32 * mib},
	}
	for _, tc := range cases {
		pid := large(tc.name, tc.sizes...)
		s := b.step(pid, ago(time.Minute), nil, 1000)
		require.Equal(t, tc.gone, s.Deleted, tc.name)
		require.Equal(t, tc.bytes, s.Bytes, tc.name)
		require.False(t, s.Done, tc.name)
		require.True(t, b.step(pid, ago(time.Minute), nil, 1000).Done, tc.name)
		require.Empty(t, b.bases(pid), tc.name)
	}
	require.Zero(t, b.wrong())
}

// Eviction asks neither groups nor leases, and dead-letters nothing.
func TestWhatAnEvictionDeletes(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, time.Hour, time.Hour, time.Hour, time.Minute)
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, batch_end, worker_id, lease_expires_at)
		VALUES ($1, 'g', 9, 'w', now() + interval '1 hour')`, pid)
	for i, want := range []store.Step{
		{Deleted: 2, Messages: 20, Bytes: 2, NewStart: ptr(int64(20))},
		{Deleted: 1, Messages: 10, Bytes: 1, NewStart: ptr(int64(30)), Done: true},
		{NewStart: ptr(int64(30)), Done: true},
	} {
		s, err := b.m.EvictStep(t.Context(), pid, *ago(10 * time.Minute), 2)
		require.NoError(t, err)
		require.Equal(t, want, s, "step %d", i)
	}
	require.Equal(t, []int64{30}, b.bases(pid))
	require.Equal(t, []string{"max_wait_time_eviction 20", "max_wait_time_eviction 10"}, b.events(pid))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.log_dlq`))
	require.Zero(t, b.wrong())
}

// The delete, the marks and the history are one transaction.
func TestAStepIsUndoneAsAWhole(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, time.Hour, time.Hour)
	before := b.lane(pid)
	b.undone(func(ctx context.Context, tx pgx.Tx) {
		var deleted int
		const call = `SELECT (queen.log_retention_step_v1($1, now(), NULL, 10) ->> 'deleted')::int + (queen.log_txns_purge_step_v1($1, now(), 10) ->> 'deleted')::int`
		require.NoError(t, tx.QueryRow(ctx, call, pid).Scan(&deleted))
		require.Equal(t, 4, deleted)
	})
	require.Equal(t, before, b.lane(pid))
	require.Empty(t, b.events(pid))
	require.Equal(t, []int64{0, 10}, b.bases(pid))
}

// A call with an older cutoff, or of a slower caller, never takes a mark back.
func TestMarksOnlyMoveForward(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, 3*time.Hour, time.Hour, time.Hour)
	b.step(pid, ago(time.Minute), nil, 1000)
	s := b.step(pid, ago(2*time.Hour), nil, 1000)
	require.Equal(t, store.Step{NewStart: ptr(int64(30)), Done: true}, s)
	require.Equal(t, int64(30), b.lane(pid).Start)
	require.Equal(t, int64(30), b.queued(fresh("q", "p", 1)).BaseOffset, "offsets are not used again")
}

// A watermark that was wrong sends steps to a lane for nothing, once.
func TestAStepSetsAWrongWatermarkRight(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	pid := b.fill("q", "p", 10, time.Minute)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = 'epoch', oldest_txn_at = 'epoch'`)
	require.Zero(t, b.step(pid, ago(time.Hour), nil, 10).Deleted)
	s, err := b.m.TxnsStep(t.Context(), pid, *ago(time.Hour), 10)
	require.NoError(t, err)
	require.Zero(t, s.Deleted)
	require.Zero(t, b.wrong())
}
