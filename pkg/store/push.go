package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// pushArrays are the index-aligned arguments of log_push_multi_v1.
type pushArrays struct {
	queues, partitions []string
	counts             []int32
	hashes, blobs      [][]byte
	verified           []int64
	tenants, pids      []uuid.UUID
	windows            []int32
}

func arraysOf(segs []PushSegment) pushArrays {
	n := len(segs)
	a := pushArrays{
		queues: make([]string, n), partitions: make([]string, n), counts: make([]int32, n),
		hashes: make([][]byte, n), blobs: make([][]byte, n), verified: make([]int64, n),
		tenants: make([]uuid.UUID, n), pids: make([]uuid.UUID, n), windows: make([]int32, n),
	}
	for i := range segs {
		s := &segs[i]
		a.queues[i], a.partitions[i], a.counts[i] = s.Queue, s.Partition, int32(s.Count)
		a.hashes[i], a.blobs[i], a.verified[i] = s.Hashes, s.Blob, s.Verified
		a.tenants[i], a.pids[i], a.windows[i] = s.Tenant, s.PartitionID, int32(s.Window)
	}
	return a
}

// PushMulti writes segments in one transaction (log_push_multi_v1), creating
// queues and partitions that are missing. Verdicts are aligned with segs; a
// duplicate verdict wrote nothing of its segment. After an error nothing was
// written, unless Ambiguous says that the answer was lost.
func (s *Store) PushMulti(ctx context.Context, segs []PushSegment) ([]PushVerdict, error) {
	a := arraysOf(segs)
	text, err := s.rawJSON(ctx, "push", `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		a.queues, a.partitions, a.counts, a.hashes, a.verified, a.blobs, a.tenants, a.pids, a.windows)
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
