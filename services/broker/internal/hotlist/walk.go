package hotlist

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/store"
)

// Pauses of a ring whose walks fail.
const (
	walkBackoffMin = 250 * time.Millisecond
	walkBackoffMax = 30 * time.Second
)

// walk is how a ring is derived from the database.
type walk struct {
	phase int64 // of the walks, so that those of many rings do not meet

	mu      sync.Mutex
	after   uuid.UUID // the lane the next pass goes on behind
	seeded  bool      // a pass has ended well
	owed    bool      // a pass is due although its time has not come
	moved   bool      // cursors went back: the next pass frees what it lists
	began   int64     // of the last pass
	ended   int64
	retryAt int64 // after a failure
	failed  int   // passes that failed in a row
	rows    int   // lanes that the last pass listed

	// Passes are numbered, so that whoever asked before one began shares it.
	begun, done uint64
	running     chan struct{} // closed when the pass ends; nil: none runs
	err         error         // of pass done
}

// owe makes the ring due.
func (w *walk) owe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owed = true
}

// turn makes the ring due for a pass that frees what it lists.
func (w *walk) turn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owed, w.moved = true, true
}

// walking says whether a pass runs.
func (w *walk) walking() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running != nil
}

// due is when the next pass is to begin: at the next point of the ring's own grid,
// but not before it has rested as long as the last one took; one that is owed, as
// soon as walking takes no more than a fifth of the time.
func (w *walk) due(interval time.Duration) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dueLocked(interval)
}

func (w *walk) dueLocked(interval time.Duration) int64 {
	step, cost := int64(interval), w.ended-w.began
	at := max(w.began-mod(w.began-w.phase, step)+step, w.ended+cost)
	switch {
	case !w.seeded && !w.owed:
		at = 0
	case w.owed:
		at = min(at, w.ended+max(int64(walkPause), walkShare*cost))
	}
	return max(at, w.retryAt)
}

func mod(a, b int64) int64 { return (a%b + b) % b }

// cold says whether an empty ring proves nothing: it has never been walked, owes a
// walk, or was not walked for long because nobody asked.
func (w *walk) cold(now int64, interval time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.seeded || w.owed && w.dueLocked(interval) <= now || now-w.began > 2*int64(interval)+int64(FloorTick) && w.retryAt <= now
}

// Reseed derives the ring of a group from the database, now and in full, making it
// if need be. Calls that wait for a pass that has yet to begin share it. Hold no
// admission slot meanwhile: the walk takes its own, and may take seconds.
func (l *List) Reseed(ctx context.Context, tenant uuid.UUID, queue, group string) error {
	if l == nil {
		return nil
	}
	return l.ensure(tenant, queue, group).reseed(ctx)
}

// Repair is for a group whose cursors have moved in all of a queue: it derives the ring
// anew, now and in full, and frees the lanes that waited for a lease, since no lease
// has outlived that. Without a ring there is nothing to repair. After an error the ring
// stays due for it.
func (l *List) Repair(ctx context.Context, tenant uuid.UUID, queue, group string) error {
	if l == nil {
		return nil
	}
	q := l.queue(tenant, queue)
	if q == nil {
		return nil
	}
	r := q.find(group)
	if r == nil {
		return nil
	}
	r.walk.turn()
	return r.reseed(ctx)
}

func (r *ring) reseed(ctx context.Context) error {
	w := &r.walk
	w.mu.Lock()
	need := w.begun + 1
	for w.done < need && w.running != nil {
		running := w.running
		w.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return ctx.Err()
		}
		w.mu.Lock()
	}
	if w.done >= need {
		defer w.mu.Unlock()
		return w.err
	}
	w.begun++
	w.running = make(chan struct{})
	w.began, w.owed = r.queue.list.now(), false
	k := row
	if w.moved {
		k, w.moved = moved, false
	}
	w.mu.Unlock()
	rows, err := r.pass(ctx, k)
	if err != nil && k == moved {
		w.turn()
	}
	r.endPass(ctx, rows, err)
	return err
}

// endPass notes how a pass ended.
func (r *ring) endPass(ctx context.Context, rows int, err error) {
	l, w := r.queue.list, &r.walk
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = l.now()
	switch {
	case err == nil:
		w.seeded, w.rows, w.failed, w.retryAt = true, rows, 0, 0
		w.done, w.err = w.begun, nil
	case ctx.Err() != nil:
		w.owed = true // given up by its caller; whoever waits makes another
	default:
		w.retryAt = w.ended + int64(lifecycle.Backoff(w.failed, walkBackoffMin, walkBackoffMax))
		w.owed, w.failed = true, w.failed+1
		w.done, w.err = w.begun, err
	}
	close(w.running)
	w.running = nil
	l.tally.pass(rows, err)
	l.metrics.reseeded(err)
}

// pass reads pages until it has come round to where it began, or to a bound. k is the
// kind of mark that lanes get.
func (r *ring) pass(ctx context.Context, k kind) (rows int, err error) {
	q := r.queue
	// Without settings nothing is deferred here, which is no reason not to walk.
	_ = q.refresh(ctx)
	if q.crowded() {
		q.collect()
	}
	r.walk.mu.Lock()
	start := r.walk.after
	r.walk.mu.Unlock()
	after, wrapped := start, start == uuid.Nil
	for range q.list.limits.pages {
		refs, err := r.page(ctx, after)
		if err != nil {
			return rows, err
		}
		taken := r.absorb(refs, k)
		rows += taken
		switch {
		case r.dropped.Load():
			return rows, nil
		case taken < len(refs): // no room; what was taken is not read again
			if taken > 0 {
				r.walk.goOn(refs[taken-1].ID)
			}
			return rows, nil
		case len(refs) == q.list.limits.page:
			after = refs[len(refs)-1].ID
		case wrapped:
			r.walk.goOn(uuid.Nil)
			return rows, nil
		default:
			after, wrapped = uuid.Nil, true
		}
		r.walk.goOn(after)
		if wrapped && start != uuid.Nil && bytes.Compare(after[:], start[:]) >= 0 {
			return rows, nil
		}
	}
	return rows, nil
}

func (w *walk) goOn(after uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = after
}

// page reads one page, under a slot of its own.
func (r *ring) page(ctx context.Context, after uuid.UUID) ([]store.PartitionRef, error) {
	q, deps := r.queue, &r.queue.list.deps
	if deps.Admit != nil {
		release, err := deps.Admit(ctx)
		if err != nil {
			return nil, fmt.Errorf("admit a page of the hot list: %w", err)
		}
		defer release()
	}
	return deps.Store.HotlistReseed(ctx, q.tenant, q.queue, r.group, after, q.list.limits.page)
}

// absorb marks the lanes of a page and returns how many there was room for. It
// wakes for some of those that became ready.
func (r *ring) absorb(refs []store.PartitionRef, k kind) (taken int) {
	var woken []int32
	for taken < len(refs) {
		chunk := refs[taken:min(taken+internChunk, len(refs))]
		n, lanes := r.absorbSome(chunk, k, woken)
		woken, taken = lanes, taken+n
		if n < len(chunk) {
			break
		}
	}
	r.queue.wakeAll(woken)
	return taken
}

// absorbSome does so under one lock, which keeps the numbers with the lanes.
func (r *ring) absorbSome(refs []store.PartitionRef, k kind, woken []int32) (taken int, lanes []int32) {
	q := r.queue
	m := mark{kind: k, now: q.list.now(), o: q.options()}
	lessons := make([]lesson, 0, len(refs))
	q.mu.Lock()
	for i := range refs {
		if r.dropped.Load() {
			break
		}
		lane, ok := q.intern(refs[i].Name)
		if !ok {
			break
		}
		if r.mark(lane, m) && len(woken) < wakeMax {
			woken = append(woken, lane)
		}
		lessons = append(lessons, lesson{lane, q.table.name(lane), refs[i].ID})
	}
	q.mu.Unlock()
	taken = len(lessons)
	q.learn(lessons)
	return taken, woken
}
