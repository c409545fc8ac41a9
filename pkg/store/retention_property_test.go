package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/queenmq/queen/pkg/store"
)

// run is one random life of a queue, in the database and in the model.
type run struct {
	*rapid.T
	b     *keepBench
	queue string
	lanes map[string]*laneModel
}

func (r *run) ctx() context.Context { return r.b.t.Context() }

// Pushes, readers, configurations and maintenance in any order leave a lane as the
// model has it: no rule deletes more than it may, nor less; marks and watermarks are
// exact at every moment; offsets are used once in the life of a lane; the history
// counts what went.
func TestMaintenanceBehavesLikeTheModel(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.patient()
	var runs atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		r := &run{T: t, b: b, queue: fmt.Sprint("q", runs.Add(1)), lanes: map[string]*laneModel{"a": {}, "b": {}, "c": {}}}
		r.push()
		steps := map[string]func(){
			"push": r.push, "push again": r.push, "pop": r.pop, "pop again": r.pop, "age": r.age, "configure": r.configure,
			"retention": r.retention, "retention again": r.retention, "evict": r.evict, "sidecar": r.sidecar,
			"cycle": r.cycle, "cleanup": r.cleanup, "walk": r.walk,
		}
		names := make([]string, 0, len(steps))
		for name := range steps {
			names = append(names, name)
		}
		slices.Sort(names)
		for range 25 {
			steps[rapid.SampledFrom(names).Draw(t, "step")]()
			r.compare()
		}
	})
}

func (r *run) lane() (string, *laneModel) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r.T, "lane")
	return name, r.lanes[name]
}

func (r *run) push() {
	var segs []store.PushSegment
	for _, name := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(r.T, "push to "+name) {
			segs = append(segs, fresh(r.queue, name, rapid.IntRange(1, 4).Draw(r.T, "frames")))
		}
	}
	verdicts, err := r.b.store.PushMulti(r.ctx(), segs)
	require.NoError(r, err)
	for i, v := range verdicts {
		l := r.lanes[segs[i].Partition]
		want := int64(0)
		if l.exists() {
			require.Equal(r, l.id, v.PartitionID)
			want = l.last + 1
		}
		require.Equal(r, want, v.BaseOffset)
		l.pushed(v.PartitionID, int64(segs[i].Count), v.CreatedAt)
	}
}

// pop reads and acknowledges some messages: just the next ones that still exist.
func (r *run) pop() {
	name, l := r.lane()
	group := rapid.SampledFrom([]string{"g", "h"}).Draw(r.T, "group")
	p := popArgs(group, rapid.IntRange(1, 8).Draw(r.T, "budget"))
	p.AutoAck = true
	popped, err := r.b.store.PopSpecific(r.ctx(), r.queue, name, p)
	require.NoError(r, err)
	if !l.exists() {
		require.Empty(r, popped)
		return
	}
	before, known := l.cursors[group]
	if !known {
		before = -1
	}
	var got []int64
	for _, p := range popped {
		for _, s := range p.Segments {
			for i := range s.Take {
				got = append(got, s.Base+int64(s.Start+i))
			}
		}
	}
	require.Equal(r, l.after(before, p.Budget), got)
	// Where an empty lane leaves a cursor is the pop's affair.
	var committed *int64
	r.one([]any{&committed}, `SELECT (SELECT committed FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2)`, l.id, group)
	if committed != nil {
		require.GreaterOrEqual(r, *committed, before)
		l.cursors[group] = *committed
	}
}

// age makes everything in the queue older by some seconds.
func (r *run) age() {
	by := rapid.IntRange(1, 2000).Draw(r.T, "seconds")
	for _, sql := range []string{
		`UPDATE queen.log_segments SET created_at = created_at - $2::int * interval '1 s' WHERE partition_id = ANY ($1)`,
		`UPDATE queen.log_txns SET created_at = created_at - $2::int * interval '1 s' WHERE partition_id = ANY ($1)`,
		`UPDATE queen.log_consumers SET created_at = created_at - $2::int * interval '1 s' WHERE partition_id = ANY ($1)`,
		`UPDATE queen.log_partitions SET created_at = created_at - $2::int * interval '1 s', last_write_at = last_write_at - $2::int * interval '1 s',
			oldest_live_at = oldest_live_at - $2::int * interval '1 s', oldest_txn_at = oldest_txn_at - $2::int * interval '1 s' WHERE id = ANY ($1)`,
	} {
		r.exec(sql, r.ids(), by)
	}
	for _, l := range r.lanes {
		l.older(time.Duration(by) * time.Second)
	}
}

func (r *run) configure() {
	window := rapid.SampledFrom([]int{0, 0, 1, 500, 1000, 3000})
	options, err := json.Marshal(map[string]any{
		"retentionEnabled": rapid.Bool().Draw(r.T, "enabled"), "retentionSeconds": window.Draw(r.T, "all"),
		"completedRetentionSeconds": window.Draw(r.T, "completed"), "maxWaitTimeSeconds": window.Draw(r.T, "wait"),
	})
	require.NoError(r, err)
	_, err = r.b.store.Configure(r.ctx(), store.DefaultTenant(), r.queue, options, false)
	require.NoError(r, err)
}

// cutoff is nil, or somewhere in the life of a lane: at a segment's birth it stays,
// a moment later it goes.
func (r *run) cutoff(label string, l *laneModel) *time.Time {
	instants := []time.Time{time.Now()}
	for _, s := range append(slices.Clone(l.segments), l.sidecar...) {
		instants = append(instants, s.at, s.at.Add(time.Microsecond))
	}
	if at := rapid.IntRange(-1, len(instants)-1).Draw(r.T, label); at >= 0 {
		return &instants[at]
	}
	return nil
}

func (r *run) rows() int { return rapid.IntRange(1, 4).Draw(r.T, "rows") }

func (r *run) retention() {
	if _, l := r.lane(); l.exists() {
		r.step(l, r.cutoff("all", l), r.cutoff("completed", l), r.rows())
	}
}

// step makes one step of retention on both sides; true at its end.
func (r *run) step(l *laneModel, all, completed *time.Time, rows int) bool {
	got, err := r.b.m.RetentionStep(r.ctx(), l.id, all, completed, rows)
	require.NoError(r, err)
	slowest, read := l.slowest()
	gone := r.took(l, got, l.bound(all, completed), rows)
	if all == nil && len(gone) > 0 {
		require.True(r, read)
		require.LessOrEqual(r, gone[len(gone)-1].end, slowest, "nobody has read it")
	}
	return got.Done
}

// took compares a step on segments with the model's, and makes that.
func (r *run) took(l *laneModel, got store.Step, bound int64, rows int) []stretch {
	gone, left, frames, done := cut(l.segments, bound, rows)
	if len(gone) > 0 {
		l.start = gone[len(gone)-1].end + 1
	}
	require.Equal(r, store.Step{
		Deleted: int64(len(gone)), Messages: frames, Bytes: int64(len(gone)), NewStart: &l.start, Done: done,
	}, got)
	l.segments, l.frames = left, l.frames+frames
	return gone
}

func (r *run) evict() {
	_, l := r.lane()
	if cutoff := r.cutoff("cutoff", l); l.exists() && cutoff != nil {
		r.evictStep(l, *cutoff, r.rows())
	}
}

func (r *run) evictStep(l *laneModel, cutoff time.Time, rows int) bool {
	got, err := r.b.m.EvictStep(r.ctx(), l.id, cutoff, rows)
	require.NoError(r, err)
	r.took(l, got, l.bound(&cutoff, nil), rows)
	return got.Done
}

func (r *run) sidecar() {
	_, l := r.lane()
	if cutoff := r.cutoff("cutoff", l); l.exists() && cutoff != nil {
		r.sidecarStep(l, *cutoff, r.rows())
	}
}

func (r *run) sidecarStep(l *laneModel, cutoff time.Time, rows int) bool {
	got, err := r.b.m.TxnsStep(r.ctx(), l.id, cutoff, rows)
	require.NoError(r, err)
	gone, left, frames, done := cut(l.sidecar, stale(l.sidecar, l.txns, cutoff), rows)
	if len(gone) > 0 {
		l.txns = gone[len(gone)-1].end + 1
	}
	require.Equal(r, store.Step{
		Deleted: int64(len(gone)), Messages: frames, Bytes: 16 * frames, NewStart: &l.txns, Done: done,
	}, got)
	l.sidecar = left
	return got.Done
}

// cycle does what a leader does, by the queue's own policy: the plan and the pages
// name the lanes that the model names.
func (r *run) cycle() {
	plan, err := r.b.m.Plan(r.ctx())
	require.NoError(r, err)
	at := slices.IndexFunc(plan.Queues, func(q store.QueuePlan) bool { return q.Name == r.queue })
	if at < 0 {
		return
	}
	q := plan.Queues[at]
	due := r.due(func(l *laneModel) bool {
		slowest, read := l.slowest()
		return past(l.segments, q.All) || past(l.segments, q.Completed) && read && slowest >= l.start
	})
	examined := r.due(func(l *laneModel) bool { return past(l.segments, q.All) || past(l.segments, q.Completed) })
	require.Equal(r, len(examined) > 0, q.LiveDue)
	require.Equal(r, due, r.pages(len(examined), func(after store.LaneKey) (store.Page, error) {
		return r.b.m.RetentionPage(r.ctx(), q, after, store.LaneKey{}, 2)
	}))
	r.onEach(due, func(l *laneModel) bool { return r.step(l, q.All, q.Completed, 2) })

	due = r.due(func(l *laneModel) bool { return past(l.sidecar, q.Txns) })
	require.Equal(r, len(due) > 0, q.TxnsDue)
	require.Equal(r, due, r.pages(len(due), func(after store.LaneKey) (store.Page, error) {
		return r.b.m.TxnsPage(r.ctx(), q, after, 2)
	}))
	r.onEach(due, func(l *laneModel) bool { return r.sidecarStep(l, *q.Txns, 2) })

	due = r.due(func(l *laneModel) bool { return past(l.segments, q.MaxWait) })
	require.Equal(r, due, r.pages(len(due), func(after store.LaneKey) (store.Page, error) {
		return r.b.m.EvictPage(r.ctx(), q, after, 2)
	}))
	r.onEach(due, func(l *laneModel) bool { return r.evictStep(l, *q.MaxWait, 2) })
}

// past tells that the first of stretches is older than a cutoff.
func past(stretches []stretch, cutoff *time.Time) bool {
	return cutoff != nil && len(stretches) > 0 && stretches[0].at.Before(*cutoff)
}

// due are the lanes of which ok is true, ascending.
func (r *run) due(ok func(l *laneModel) bool) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, l := range r.lanes {
		if l.exists() && ok(l) {
			ids = append(ids, l.id)
		}
	}
	return sorted(ids...)
}

// pages reads pages of two until the end.
func (r *run) pages(examined int, next func(after store.LaneKey) (store.Page, error)) []uuid.UUID {
	ids := []uuid.UUID{}
	var key store.LaneKey
	for {
		p, err := next(key)
		require.NoError(r, err)
		ids, examined, key = append(ids, p.Due...), examined-p.Examined, p.Last
		if p.Examined < 2 {
			require.Zero(r, examined)
			return sorted(ids...)
		}
	}
}

func (r *run) onEach(ids []uuid.UUID, step func(l *laneModel) bool) {
	for _, id := range ids {
		for _, l := range r.lanes {
			for done := l.id != id; !done; {
				done = step(l)
			}
		}
	}
}

// cleanup takes only lanes without a segment. What it took comes anew.
func (r *run) cleanup() {
	cutoff := time.Now().Add(-time.Duration(rapid.IntRange(0, 1000).Draw(r.T, "window")) * time.Second)
	_, err := r.b.m.CleanupStep(r.ctx(), cutoff, store.LaneKey{}, 1000)
	require.NoError(r, err)
	left := r.states()
	for name, l := range r.lanes {
		if _, ok := left[l.id]; l.exists() && !ok {
			require.Empty(r, l.segments)
			r.lanes[name] = &laneModel{}
		}
	}
}

func (r *run) walk() {
	w, err := r.b.m.WalkStep(r.ctx(), uuid.Nil, 1000, true)
	require.NoError(r, err)
	require.Zero(r, w.Repaired, "every watermark is right at all times")
}

func (r *run) ids() []uuid.UUID { return r.due(func(*laneModel) bool { return true }) }

func (r *run) compare() {
	states := r.states()
	for name, l := range r.lanes {
		if l.exists() {
			require.Equal(r, l.String(), states[l.id], "lane %s", name)
		}
	}
}

func (r *run) states() map[uuid.UUID]string {
	states := map[uuid.UUID]string{}
	require.NoError(r, r.b.db.Do(r.ctx(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, laneState, r.ids())
		if err != nil {
			return err
		}
		var id uuid.UUID
		var state string
		_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
			states[id] = state
			return nil
		})
		return err
	}))
	return states
}

func (r *run) exec(sql string, args ...any) {
	require.NoError(r, r.b.db.Do(r.ctx(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

func (r *run) one(dest []any, sql string, args ...any) {
	require.NoError(r, r.b.db.Do(r.ctx(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(dest...)
	}))
}
