package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MessageFilter selects messages. Zero values do not filter, or stand for what is
// usual: the last hour, 200 messages.
type MessageFilter struct {
	Tenant          uuid.UUID
	Queue           string
	Partition       string
	Namespace, Task string
	Status          string
	From, To        time.Time
	Limit, Offset   int
	After           string // the "next" of an earlier page
}

// ListMessages lists messages, newest first and without what is in the segments
// (list_messages_v1). A listing that would have to look at too much is refused with
// *BrowseRefused.
func (s *Store) ListMessages(ctx context.Context, f MessageFilter) (RawJSON, error) {
	filters := newFilters(f.Tenant)
	filters.text("queue", f.Queue)
	filters.text("partition", f.Partition)
	filters.text("namespace", f.Namespace)
	filters.text("task", f.Task)
	filters.text("status", f.Status)
	filters.instant("from", f.From)
	filters.instant("to", f.To)
	filters.page(f.Limit, f.Offset, f.After)
	body, err := filters.json()
	if err != nil {
		return nil, fmt.Errorf("list messages: %w", err)
	}
	doc, err := s.rawJSON(ctx, "list messages", `SELECT queen.list_messages_v1($1)`, body)
	return doc, browseError(err)
}

// Place is where a message is: in a segment, or, when the sidecar does not know it,
// perhaps in one that begins below Floor.
type Place struct {
	Offset int64
	Known  bool
	Floor  int64
}

// FindMessage looks for the newest message of a lane with that hash of its transaction
// id (log_message_find_v1); false for a lane that the tenant does not have.
func (s *Store) FindMessage(ctx context.Context, tenant, partition uuid.UUID, hash [16]byte) (Place, bool, error) {
	var p Place
	var off *int64
	err := s.scanOne(ctx, "find message", `SELECT r_off, r_floor FROM queen.log_message_find_v1($1, $2, $3)`,
		[]any{partition, hash[:], tenant}, &off, &p.Floor)
	if errors.Is(err, pgx.ErrNoRows) {
		return Place{}, false, nil
	}
	if off != nil {
		p.Offset, p.Known = *off, true
	}
	return p, err == nil, err
}

// MessageState is what is known of a message beside its content
// (log_message_state_v1), nothing for a lane that the tenant does not have.
func (s *Store) MessageState(ctx context.Context, tenant, partition uuid.UUID, offset int64) (RawJSON, error) {
	doc, err := s.rawJSON(ctx, "read message state", `SELECT queen.log_message_state_v1($1, $2, $3)`, partition, offset, tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return doc, err
}

// SegmentKey names one stored segment.
type SegmentKey struct {
	PartitionID uuid.UUID
	Base        int64
}

// SegmentsAt reads segments (log_segments_at_v1): the first one there is, and those
// after it which together have no more than maxBytes. They are told by their keys;
// what retention has removed is missing.
func (s *Store) SegmentsAt(ctx context.Context, keys []SegmentKey, maxBytes int64) (map[SegmentKey]Segment, error) {
	pids, bases := make([]uuid.UUID, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		pids[i], bases[i] = k.PartitionID, k.Base
	}
	var found map[SegmentKey]Segment
	err := s.db.Do(ctx, "read segments", func(ctx context.Context, conn *pgx.Conn) error {
		found = make(map[SegmentKey]Segment, len(keys))
		rows, err := conn.Query(ctx,
			`SELECT r_ord, r_base, r_end, r_created, r_blob FROM queen.log_segments_at_v1($1, $2, $3)`, pids, bases, maxBytes)
		if err != nil {
			return err
		}
		var ord int
		var seg Segment
		_, err = pgx.ForEachRow(rows, []any{&ord, &seg.Base, &seg.End, &seg.CreatedAt, &seg.Blob}, func() error {
			found[keys[ord-1]] = seg
			seg.Blob = nil // the next row gets memory of its own
			return nil
		})
		return err
	})
	return found, err
}

// SegmentsBelow reads the segments of a lane that begin below an offset, newest first
// (log_segments_below_v1): at most maxRows, and no more than maxBytes beyond the first.
func (s *Store) SegmentsBelow(ctx context.Context, partition uuid.UUID, below int64, maxRows int, maxBytes int64) (segs []Segment, err error) {
	err = s.db.Do(ctx, "read segments", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx,
			`SELECT r_base, r_end, r_created, r_blob FROM queen.log_segments_below_v1($1, $2, $3, $4)`, partition, below, maxRows, maxBytes)
		if err != nil {
			return err
		}
		segs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Segment])
		return err
	})
	return segs, err
}
