package store_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// stretch is a stored segment, or its sidecar row, as the model has it.
type stretch struct {
	base, end int64
	at        time.Time
}

// laneModel is a lane in the simplest words. The zero value does not exist yet.
type laneModel struct {
	id          uuid.UUID
	last        int64
	start, txns int64
	segments    []stretch
	sidecar     []stretch
	cursors     map[string]int64
	frames      int64 // that the history owes
}

func (l *laneModel) exists() bool { return l.id != uuid.Nil }

// pushed appends what a push has stored.
func (l *laneModel) pushed(id uuid.UUID, frames int64, at time.Time) {
	if !l.exists() {
		*l = laneModel{id: id, last: -1, cursors: map[string]int64{}}
	}
	s := stretch{l.last + 1, l.last + frames, at}
	l.segments, l.sidecar, l.last = append(l.segments, s), append(l.sidecar, s), s.end
}

// after are the first n stored offsets behind one.
func (l *laneModel) after(offset int64, n int) (offsets []int64) {
	for _, s := range l.segments {
		for o := max(s.base, offset+1); o <= s.end && len(offsets) < n; o++ {
			offsets = append(offsets, o)
		}
	}
	return offsets
}

// slowest is the lowest cursor; false without any.
func (l *laneModel) slowest() (int64, bool) {
	if len(l.cursors) == 0 {
		return 0, false
	}
	return slices.Min(slices.Collect(maps.Values(l.cursors))), true
}

// stale is the base of the first stretch that is not older than a cutoff, or where the
// last one ends.
func stale(stretches []stretch, from int64, cutoff time.Time) int64 {
	for _, s := range stretches {
		if !s.at.Before(cutoff) {
			return s.base
		}
		from = s.end + 1
	}
	return from
}

// bound is up to where both rules let go.
func (l *laneModel) bound(all, completed *time.Time) int64 {
	bound := l.start
	if all != nil {
		bound = max(bound, stale(l.segments, l.start, *all))
	}
	if slowest, any := l.slowest(); any && completed != nil {
		bound = max(bound, min(slowest+1, stale(l.segments, l.start, *completed)))
	}
	return bound
}

// cut is what a step deletes from the bottom of stretches, and whether that is all.
func cut(stretches []stretch, bound int64, rows int) (gone, left []stretch, frames int64, done bool) {
	due := 0
	for due < len(stretches) && stretches[due].end < bound {
		due++
	}
	n := min(due, rows)
	for _, s := range stretches[:n] {
		frames += s.end - s.base + 1
	}
	return stretches[:n], stretches[n:], frames, n == due
}

// older makes all of a lane that much older.
func (l *laneModel) older(by time.Duration) {
	for _, stretches := range [][]stretch{l.segments, l.sidecar} {
		for i := range stretches {
			stretches[i].at = stretches[i].at.Add(-by)
		}
	}
}

// String is the lane as laneState reads it from the database.
func (l *laneModel) String() string {
	return fmt.Sprintf("last %d start %d txns %d oldest %s %s segments %s sidecar %s deleted %d",
		l.last, l.start, l.txns, oldest(l.segments), oldest(l.sidecar), stretchesText(l.segments), stretchesText(l.sidecar), l.frames)
}

func oldest(stretches []stretch) string {
	if len(stretches) == 0 {
		return "none"
	}
	return fmt.Sprint(stretches[0].at.UnixMicro())
}

func stretchesText(stretches []stretch) string {
	texts := make([]string, len(stretches))
	for i, s := range stretches {
		texts[i] = fmt.Sprintf("%d-%d@%d", s.base, s.end, s.at.UnixMicro())
	}
	return "[" + strings.Join(texts, " ") + "]"
}

// laneState reads the lanes $1 as the model shows them.
const laneState = `SELECT p.id, format('last %s start %s txns %s oldest %s %s segments [%s] sidecar [%s] deleted %s',
		p.last_offset, p.log_start, p.txns_start,
		coalesce((extract(epoch FROM p.oldest_live_at) * 1000000)::bigint::text, 'none'),
		coalesce((extract(epoch FROM p.oldest_txn_at) * 1000000)::bigint::text, 'none'),
		(SELECT string_agg(format('%s-%s@%s', base_offset, end_offset, (extract(epoch FROM created_at) * 1000000)::bigint), ' ' ORDER BY base_offset)
			FROM queen.log_segments WHERE partition_id = p.id),
		(SELECT string_agg(format('%s-%s@%s', base_offset, end_offset, (extract(epoch FROM created_at) * 1000000)::bigint), ' ' ORDER BY base_offset)
			FROM queen.log_txns WHERE partition_id = p.id),
		(SELECT coalesce(sum(messages_deleted), 0) FROM queen.retention_history WHERE partition_id = p.id))
	FROM queen.log_partitions AS p WHERE p.id = ANY ($1)`
