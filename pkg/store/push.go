package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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

// PushBundle writes segments in one transaction (log_push_multi_v1), creating
// queues and partitions that are missing. Verdicts are aligned with segs; a
// duplicate or busy verdict wrote nothing of its segment. After an error nothing
// was written, unless Ambiguous says that the answer was lost.
func (s *Store) PushBundle(ctx context.Context, segs []PushSegment, wait LockWait) ([]PushVerdict, error) {
	text, err := s.pushBundle(ctx, segs, wait, true)
	if vanished(err) && anyKnown(segs) {
		text, err = s.pushBundle(ctx, segs, wait, false)
	}
	if err != nil {
		return nil, err
	}
	verdicts, err := parseVerdicts(text, len(segs))
	if err != nil {
		return nil, fmt.Errorf("push: %w: %w", errAnswer, err)
	}
	return verdicts, nil
}

// pushBundle makes one call. Without known, lanes are found by name, and marks count
// for none.
func (s *Store) pushBundle(ctx context.Context, segs []PushSegment, wait LockWait, known bool) ([]byte, error) {
	c := pushColumns{segs: segs, known: known}
	var suspectSegs, suspectBases any
	if c.suspects() > 0 {
		suspectSegs, suspectBases = column{&c, suspectSegColumn}, column{&c, suspectBaseColumn}
	}
	return s.rawJSON(ctx, "push", `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		column{&c, queueColumn}, column{&c, partitionColumn}, column{&c, countColumn}, column{&c, hashColumn},
		column{&c, verifiedColumn}, column{&c, blobColumn}, column{&c, tenantColumn}, column{&c, pidColumn},
		column{&c, windowColumn}, suspectSegs, suspectBases, wait.millis())
}

// anyKnown tells that a segment names its lane by id.
func anyKnown(segs []PushSegment) bool {
	return slices.ContainsFunc(segs, func(s PushSegment) bool { return s.PartitionID != uuid.Nil })
}

// vanished tells that a lane was deleted since its id was learnt, or while the
// call waited for it.
func vanished(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "40001"
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
