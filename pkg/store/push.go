package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// pushArrays are the index-aligned arguments of log_push_multi_v1.
type pushArrays struct {
	queues, partitions []string
	counts             []int32
	hashes, blobs      [][]byte
	verified           []int64
	tenants            []uuid.UUID
	pids               []pgtype.UUID
	windows            []int32
	suspectSegs        []int32
	suspectBases       []int64
}

func arraysOf(segs []PushSegment) pushArrays {
	n := len(segs)
	a := pushArrays{
		queues: make([]string, n), partitions: make([]string, n), counts: make([]int32, n),
		hashes: make([][]byte, n), blobs: make([][]byte, n), verified: make([]int64, n),
		tenants: make([]uuid.UUID, n), pids: make([]pgtype.UUID, n), windows: make([]int32, n),
	}
	for i := range segs {
		s := &segs[i]
		a.queues[i], a.partitions[i], a.counts[i] = s.Queue, s.Partition, int32(s.Count)
		a.hashes[i], a.blobs[i], a.verified[i] = s.Hashes, s.Blob, s.Verified
		a.tenants[i], a.windows[i] = s.Tenant, int32(s.Window)
		a.pids[i] = pgtype.UUID{Bytes: s.PartitionID, Valid: s.PartitionID != uuid.Nil}
		for _, base := range s.Suspects {
			a.suspectSegs, a.suspectBases = append(a.suspectSegs, int32(i+1)), append(a.suspectBases, base)
		}
	}
	return a
}

// LockWait says what a push does about a lane that another transaction holds.
type LockWait time.Duration

// The special waits. Any other, rounded up to milliseconds, fails the whole call
// with lock_not_available (transient) once it has passed.
const (
	// WaitForLocks waits, until the statement deadline.
	WaitForLocks LockWait = -1
	// SkipLocked answers PushBusy for the lane and writes the others.
	SkipLocked LockWait = 0
)

// millis is the argument of the procedure; NULL waits.
func (w LockWait) millis() *int32 {
	if w < 0 {
		return nil
	}
	ms := int32((time.Duration(w) + time.Millisecond - 1) / time.Millisecond)
	return &ms
}

// PushMulti is PushBundle that waits for its lanes.
func (s *Store) PushMulti(ctx context.Context, segs []PushSegment) ([]PushVerdict, error) {
	return s.PushBundle(ctx, segs, WaitForLocks)
}

// PushBundle writes segments in one transaction (log_push_multi_v1), creating
// queues and partitions that are missing. Verdicts are aligned with segs; a
// duplicate or busy verdict wrote nothing of its segment. After an error nothing
// was written, unless Ambiguous says that the answer was lost.
func (s *Store) PushBundle(ctx context.Context, segs []PushSegment, wait LockWait) ([]PushVerdict, error) {
	a := arraysOf(segs)
	text, err := s.pushBundle(ctx, &a, wait)
	if vanished(err) && a.forgetIDs() {
		text, err = s.pushBundle(ctx, &a, wait)
	}
	if err != nil {
		return nil, err
	}
	var rows []struct {
		Status      PushStatus `json:"status"`
		BaseOffset  int64      `json:"baseOffset"`
		CreatedAt   time.Time  `json:"createdAt"`
		PartitionID uuid.UUID  `json:"partitionId"`
		Dups        []struct {
			Index  int   `json:"i"`
			Offset int64 `json:"off"`
		} `json:"dups"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("push: %w: %w", errAnswer, err)
	}
	if len(rows) != len(segs) {
		return nil, fmt.Errorf("push: %w: %d verdicts for %d segments", errAnswer, len(rows), len(segs))
	}
	verdicts := make([]PushVerdict, len(rows))
	for i, r := range rows {
		verdicts[i] = PushVerdict{Status: r.Status, PartitionID: r.PartitionID, BaseOffset: r.BaseOffset, CreatedAt: r.CreatedAt}
		for _, d := range r.Dups {
			verdicts[i].Dups = append(verdicts[i].Dups, Dup{Index: d.Index, Offset: d.Offset})
		}
	}
	return verdicts, nil
}

func (s *Store) pushBundle(ctx context.Context, a *pushArrays, wait LockWait) ([]byte, error) {
	return s.rawJSON(ctx, "push", `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		a.queues, a.partitions, a.counts, a.hashes, a.verified, a.blobs, a.tenants, a.pids, a.windows,
		a.suspectSegs, a.suspectBases, wait.millis())
}

// vanished tells that a lane was deleted since its id was learnt, or while the
// call waited for it.
func vanished(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40001"
}

// forgetIDs leaves the lanes to be found by name, and the marks without their
// lane. It reports whether there was an id.
func (a *pushArrays) forgetIDs() (known bool) {
	for i := range a.pids {
		known = known || a.pids[i].Valid
		a.pids[i] = pgtype.UUID{}
	}
	return known
}

// SegmentAt reads the segment that covers an offset (log_segment_at_v1); false
// when retention has removed it.
func (s *Store) SegmentAt(ctx context.Context, pid uuid.UUID, off int64) (Segment, bool, error) {
	var seg Segment
	err := s.scanOne(ctx, "read segment", `SELECT r_base, r_end, r_created, r_blob FROM queen.log_segment_at_v1($1, $2)`,
		[]any{pid, off}, &seg.Base, &seg.End, &seg.CreatedAt, &seg.Blob)
	if errors.Is(err, pgx.ErrNoRows) {
		return Segment{}, false, nil
	}
	return seg, err == nil, err
}
