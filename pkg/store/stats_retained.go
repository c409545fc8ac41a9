package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// RetainedBytes is one walk over all segments that measures what every queue
// retains. Each step is a short transaction under the lock of the stats reconciler. A
// step that fails leaves the walk where it was. Not safe for concurrent use.
type RetainedBytes struct {
	store    *Store
	page     int
	position segmentKey
	walked   bool
	sums     map[uuid.UUID]*retained
	unsaved  []uuid.UUID // queues whose sums are still to be written, ascending
}

// segmentKey is a place in the order of all segments.
type segmentKey struct {
	partition uuid.UUID
	base      int64
}

type retained struct{ segments, bytes int64 }

// BeginRetainedBytes starts a walk when one is due: every after the start of the
// last, whichever replica made it. The walk counts as made from now on, so that
// another replica does not repeat it when this one fails.
func (s *Store) BeginRetainedBytes(ctx context.Context, every time.Duration) (*RetainedBytes, StatsTurn, error) {
	return s.beginRetainedBytes(ctx, every, statsPageSegments)
}

func (s *Store) beginRetainedBytes(ctx context.Context, every time.Duration, page int) (walk *RetainedBytes, turn StatsTurn, err error) {
	turn, err = s.statsTurn(ctx, "begin to measure the retained bytes", func(ctx context.Context, tx pgx.Tx) (StatsTurn, error) {
		turn, err := statsDue(ctx, tx, statsRetainedLane, every)
		if err != nil || turn.State != StatsDone {
			return turn, err
		}
		ids, err := statsQueues(ctx, tx)
		if err != nil {
			return turn, err
		}
		walk = &RetainedBytes{store: s, page: page, unsaved: ids, sums: make(map[uuid.UUID]*retained, len(ids))}
		for _, id := range ids {
			walk.sums[id] = &retained{}
		}
		return turn, statsBegan(ctx, tx, statsRetainedLane)
	})
	if err != nil || turn.State != StatsDone {
		return nil, turn, err
	}
	return walk, turn, nil
}

// Finished tells that everything is measured and written.
func (w *RetainedBytes) Finished() bool { return w.walked && len(w.unsaved) == 0 }

// Step measures one more page of segments or, behind the last one, writes the sums
// of some queues. StatsBusy means that nothing was done.
func (w *RetainedBytes) Step(ctx context.Context) (StatsTurn, error) {
	if !w.walked {
		return w.measure(ctx)
	}
	return w.save(ctx)
}

func (w *RetainedBytes) measure(ctx context.Context) (StatsTurn, error) {
	var page []retainedRow
	turn, err := w.store.statsTurn(ctx, "measure the retained bytes", func(ctx context.Context, tx pgx.Tx) (_ StatsTurn, err error) {
		page, err = readRetained(ctx, tx, w.position, w.page)
		return StatsTurn{State: StatsDone}, err
	})
	if err != nil || turn.State != StatsDone {
		return turn, err
	}
	w.walked = true
	for _, row := range page {
		// A queue that was created since has no place yet: it waits for the next walk.
		if sum, ok := w.sums[row.queue]; ok {
			sum.segments += row.segments
			sum.bytes += row.bytes
		}
		if row.partition != nil {
			w.position, w.walked = segmentKey{*row.partition, *row.base}, false
		}
	}
	return turn, nil
}

// retainedRow is what a page holds of one queue. partition and base are the last
// key of the page, nil at the end of all segments.
type retainedRow struct {
	queue           uuid.UUID
	segments, bytes int64
	partition       *uuid.UUID
	base            *int64
}

func readRetained(ctx context.Context, tx pgx.Tx, after segmentKey, limit int) ([]retainedRow, error) {
	rows, err := tx.Query(ctx, `SELECT r_queue, r_segments, r_bytes, r_partition, r_base FROM queen.log_stats_bytes_page_v1($1, $2, $3)`,
		after.partition, after.base, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r retainedRow, err error) {
		return r, row.Scan(&r.queue, &r.segments, &r.bytes, &r.partition, &r.base)
	})
}

func (w *RetainedBytes) save(ctx context.Context) (StatsTurn, error) {
	chunk := w.unsaved[:min(statsWriteQueues, len(w.unsaved))]
	if len(chunk) == 0 {
		return StatsTurn{State: StatsDone}, nil
	}
	turn, err := w.store.statsTurn(ctx, "write the retained bytes", func(ctx context.Context, tx pgx.Tx) (StatsTurn, error) {
		_, err := tx.Exec(ctx, `SELECT queen.log_stats_bytes_write_v1($1, $2, $3)`, chunk,
			values(chunk, func(id uuid.UUID) int64 { return w.sums[id].segments }),
			values(chunk, func(id uuid.UUID) int64 { return w.sums[id].bytes }))
		return StatsTurn{State: StatsDone}, err
	})
	if err == nil && turn.State == StatsDone {
		w.unsaved = w.unsaved[len(chunk):]
	}
	return turn, err
}
