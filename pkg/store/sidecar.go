package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// sidecarHash is the width of one hash of the sidecar.
const sidecarHash = 16

// NoStart is the Start of a LaneState that was not asked for, or has none.
const NoStart int64 = -1

// LaneState is what a reader of a lane's dedup window starts from.
type LaneState struct {
	Window      int       // dedup window of the queue in seconds, 0 = off
	PartitionID uuid.UUID // uuid.Nil while the lane does not exist
	Last        int64     // last offset assigned; -1 for none
	// Start is the first offset of the window and its slack, Last + 1 when the
	// window is empty, NoStart when it was not looked for.
	Start int64
}

// Sidecar is a run of sidecar rows of one lane, ascending.
type Sidecar struct {
	Bases, Ends []int64 // inclusive offsets of each row
	Newest      time.Time
	Hashes      []byte // of all rows, in offset order
}

// Rows calls fn for each row, in order, with its hashes.
func (p *Sidecar) Rows(fn func(base, end int64, hashes []byte)) {
	rest := p.Hashes
	for i, base := range p.Bases {
		n := int(p.Ends[i]-base+1) * sidecarHash
		fn(base, p.Ends[i], rest[:n])
		rest = rest[n:]
	}
}

// valid tells whether the rows are ascending and have their hashes: the order
// of an aggregate is a habit of the server, not a promise.
func (p *Sidecar) valid() bool {
	if len(p.Bases) != len(p.Ends) {
		return false
	}
	last, frames := int64(-1), int64(0)
	for i, base := range p.Bases {
		if base <= last || p.Ends[i] < base {
			return false
		}
		last, frames = p.Ends[i], frames+p.Ends[i]-base+1
	}
	return frames*sidecarHash == int64(len(p.Hashes))
}

// Lane reads a lane by name, without a lock (log_lane_v1); false for an unknown
// queue. The start of the window, slack seconds earlier, is looked for unless
// the lane is known and its window is at most window.
func (s *Store) Lane(ctx context.Context, tenant uuid.UUID, queue, partition string, slack int, known uuid.UUID, window int) (LaneState, bool, error) {
	var l LaneState
	var pid *uuid.UUID
	var last, start *int64
	err := s.scanOne(ctx, "read lane", `SELECT r_window, r_pid, r_last, r_start FROM queen.log_lane_v1($1, $2, $3, $4, $5, $6)`,
		[]any{tenant, queue, partition, slack, known, window}, &l.Window, &pid, &last, &start)
	if errors.Is(err, pgx.ErrNoRows) {
		return LaneState{}, false, nil
	}
	if err != nil {
		return LaneState{}, false, err
	}
	l.Last, l.Start = -1, NoStart
	if pid != nil {
		l.PartitionID = *pid
	}
	if last != nil {
		l.Last = *last
	}
	if start != nil {
		l.Start = *start
	}
	return l, true, nil
}

// SidecarPage reads the sidecar rows behind an offset, without a lock, that
// begin within maxOffsets of the first of them (log_sidecar_page_v1). An empty
// page says that there was nothing behind.
func (s *Store) SidecarPage(ctx context.Context, pid uuid.UUID, after int64, maxOffsets int) (Sidecar, error) {
	return s.sidecar(ctx, "read sidecar page",
		`SELECT r_bases, r_ends, r_newest, r_hashes FROM queen.log_sidecar_page_v1($1, $2, $3)`, pid, after, maxOffsets)
}

// SidecarRows reads the sidecar rows with the given bases, without a lock, and
// leaves out those that do not exist (log_sidecar_rows_v1).
func (s *Store) SidecarRows(ctx context.Context, pid uuid.UUID, bases []int64) (Sidecar, error) {
	return s.sidecar(ctx, "read sidecar rows",
		`SELECT r_bases, r_ends, r_newest, r_hashes FROM queen.log_sidecar_rows_v1($1, $2)`, pid, bases)
}

func (s *Store) sidecar(ctx context.Context, name, call string, args ...any) (Sidecar, error) {
	var p Sidecar
	var newest *time.Time
	if err := s.scanOne(ctx, name, call, args, &p.Bases, &p.Ends, &newest, &p.Hashes); err != nil {
		return Sidecar{}, err
	}
	if !p.valid() {
		return Sidecar{}, fmt.Errorf("%s: %w: %d rows, %d bytes of hashes", name, errAnswer, len(p.Bases), len(p.Hashes))
	}
	if newest != nil {
		p.Newest = *newest
	}
	return p, nil
}
