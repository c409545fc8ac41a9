package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

func (b *keepBench) walk(after uuid.UUID, limit int, deep bool) store.Walk {
	b.t.Helper()
	w, err := b.m.WalkStep(b.t.Context(), after, limit, deep)
	require.NoError(b.t, err)
	return w
}

// What a lane's offsets contradict is seen without its rows; what they do not, only
// by a deep step.
func TestTheWalkRepairsWhatIsWrong(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		damage  string
		shallow bool
	}{
		"a database of before the watermarks": {`UPDATE queen.log_partitions SET oldest_live_at = NULL, oldest_txn_at = NULL`, true},
		"segments not known":                  {`UPDATE queen.log_partitions SET oldest_live_at = NULL`, true},
		"sidecar not known":                   {`UPDATE queen.log_partitions SET oldest_txn_at = NULL`, true},
		"segments too old":                    {`UPDATE queen.log_partitions SET oldest_live_at = 'epoch'`, false},
		"segments too young":                  {`UPDATE queen.log_partitions SET oldest_live_at = now()`, false},
		"sidecar too old":                     {`UPDATE queen.log_partitions SET oldest_txn_at = 'epoch'`, false},
		"segments deleted by hand":            {`DELETE FROM queen.log_segments WHERE base_offset < 10`, false},
		"all segments deleted by hand":        {`DELETE FROM queen.log_segments`, false},
		"sidecar deleted by hand":             {`DELETE FROM queen.log_txns WHERE base_offset < 10`, false},
		"known, but gone": {`WITH gone AS (DELETE FROM queen.log_segments)
			UPDATE queen.log_partitions SET log_start = last_offset + 1`, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupKeep(t)
			b.fill("q", "a", 10, 2*time.Hour, time.Hour)
			b.fill("q", "b", 10, 3*time.Hour, time.Hour)
			require.Equal(t, store.Walk{Last: b.last(), Examined: 2, End: true}, b.walk(uuid.Nil, 10, true), "nothing to do")
			b.exec(tc.damage)
			require.NotZero(t, b.wrong())
			w := b.walk(uuid.Nil, 10, false)
			if tc.shallow {
				require.Equal(t, 2, w.Repaired)
			} else {
				require.Zero(t, w.Repaired)
				require.Equal(t, 2, b.walk(uuid.Nil, 10, true).Repaired)
			}
			require.Zero(t, b.wrong())
			require.Equal(t, store.Walk{Last: b.last(), Examined: 2, End: true}, b.walk(uuid.Nil, 10, true), "nothing is left")
		})
	}
}

// last is the highest id of all lanes.
func (b *keepBench) last() (id uuid.UUID) {
	b.t.Helper()
	b.one([]any{&id}, `SELECT id FROM queen.log_partitions ORDER BY id DESC LIMIT 1`)
	return id
}

func TestAnEmptyLaneIsNotWrong(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	require.Equal(t, store.Walk{Last: uuid.Nil, End: true}, b.walk(uuid.Nil, 10, true), "no lane at all")
	pid := b.fill("q", "p", 10, time.Hour)
	b.step(pid, ago(0), nil, 10)
	_, err := b.m.TxnsStep(t.Context(), pid, time.Now(), 10)
	require.NoError(t, err)
	require.Zero(t, b.walk(uuid.Nil, 10, true).Repaired)
	require.Equal(t, lane{Last: 9, Start: 10, Txns: 10}, b.lane(pid))
}

// Steps follow each other by id. One repairs a hundred lanes at most, and the next
// goes on behind them.
func TestTheWalkIsBounded(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	const lanes, repairs = 150, 100
	var segs []store.PushSegment
	for i := range lanes {
		segs = append(segs, fresh("q", fmt.Sprint("lane", i), 1))
	}
	b.push(segs...)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = NULL`)

	w := b.walk(uuid.Nil, 30, false)
	require.Equal(t, []any{30, 30, false}, []any{w.Examined, w.Repaired, w.End})
	w = b.walk(w.Last, 1000, false)
	require.Equal(t, []any{120, repairs, false}, []any{w.Examined, w.Repaired, w.End})
	w = b.walk(w.Last, 1000, false)
	require.Equal(t, []any{20, 20, true}, []any{w.Examined, w.Repaired, w.End})
	require.Equal(t, b.last(), w.Last)
	require.Zero(t, b.wrong())
	w = b.walk(uuid.Nil, lanes, false)
	require.False(t, w.End, "there might be another")
	require.True(t, b.walk(w.Last, lanes, false).End)

	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = NULL`)
	w = b.walk(uuid.Nil, repairs, false)
	require.Equal(t, repairs, w.Repaired)
	require.Equal(t, repairs, w.Examined)
	require.Equal(t, 50, b.walk(w.Last, 1000, false).Repaired, "no lane was passed by")
}

// A lane that a pusher holds is left for the next round.
func TestTheWalkWaitsForNobody(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	first, second := b.fill("q", "a", 1, time.Hour), b.fill("q", "b", 1, time.Hour)
	b.exec(`UPDATE queen.log_partitions SET oldest_live_at = NULL`)
	b.holding(first, func(context.Context, pgx.Tx) {
		w := b.walk(uuid.Nil, 10, false)
		require.Equal(t, []int{1, 1}, []int{w.Repaired, w.Skipped})
	})
	require.NotNil(t, b.lane(second).Live)
	require.Nil(t, b.lane(first).Live)
	require.Equal(t, 1, b.walk(uuid.Nil, 10, false).Repaired)
	require.Zero(t, b.wrong())
}

// holding runs fn while another transaction holds a lane as a pusher does; what fn
// does in it is committed.
func (b *keepBench) holding(pid uuid.UUID, fn func(ctx context.Context, tx pgx.Tx)) {
	b.t.Helper()
	b.inTx(func(ctx context.Context, tx pgx.Tx) {
		_, err := tx.Exec(ctx, `SELECT FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, pid)
		require.NoError(b.t, err)
		fn(ctx, tx)
	})
}
