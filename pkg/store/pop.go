package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// popMeta describes the slices of a pop; their blobs travel beside it, in the
// same order.
type popMeta struct {
	Partitions []struct {
		Partition       string    `json:"partition"`
		PartitionID     uuid.UUID `json:"partitionId"`
		DeliveryAttempt int       `json:"deliveryAttempt"`
		Segments        []struct {
			Seq       int64  `json:"seq"`
			StartOff  int    `json:"startOff"`
			Take      int    `json:"take"`
			CreatedAt string `json:"createdAt"`
		} `json:"segments"`
	} `json:"partitions"`
}

// join puts the blobs to their slices.
func (m popMeta) join(blobs [][]byte) ([]Popped, error) {
	popped := make([]Popped, len(m.Partitions))
	n := 0
	for i, p := range m.Partitions {
		out := Popped{
			Partition: p.Partition, PartitionID: p.PartitionID, DeliveryAttempt: max(p.DeliveryAttempt, 1),
			Segments: make([]PoppedSegment, len(p.Segments)),
		}
		for k, s := range p.Segments {
			if n == len(blobs) {
				return nil, fmt.Errorf("pop answered %d blobs, more are described", len(blobs))
			}
			out.Segments[k] = PoppedSegment{Base: s.Seq, Start: s.StartOff, Take: s.Take, CreatedAt: s.CreatedAt, Blob: blobs[n]}
			n++
		}
		popped[i] = out
	}
	if n != len(blobs) {
		return nil, fmt.Errorf("pop answered %d blobs, %d are described", len(blobs), n)
	}
	return popped, nil
}

// pop runs one call that answers (meta, blobs).
func (s *Store) pop(ctx context.Context, name, call string, args ...any) ([]Popped, error) {
	var text []byte
	var blobs [][]byte
	if err := s.scanOne(ctx, name, call, args, &text, &blobs); err != nil {
		return nil, err
	}
	var meta popMeta
	if err := json.Unmarshal(text, &meta); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", name, errAnswer, err)
	}
	return meta.join(blobs)
}

// PopSpecific claims from one partition (log_pop_specific_bin_v1). It answers at
// most one element, and creates neither queue nor partition.
func (s *Store) PopSpecific(ctx context.Context, queue, partition string, p Pop) ([]Popped, error) {
	return s.pop(ctx, "pop partition",
		`SELECT meta, blobs FROM queen.log_pop_specific_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		queue, partition, p.Group, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.SubMode, p.SubFrom, p.Tenant)
}

// PopWildcard claims from partitions of a queue that the database chooses
// (log_pop_wildcard_bin_v1). It creates the queue, and registers the group on
// its first contact.
func (s *Store) PopWildcard(ctx context.Context, queue string, p Pop) ([]Popped, error) {
	return s.pop(ctx, "pop queue",
		`SELECT meta, blobs FROM queen.log_pop_wildcard_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		queue, p.Group, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, p.Tenant)
}

// PopDiscover claims over all queues that carry the labels
// (log_pop_discover_bin_v1). An empty label matches every queue.
func (s *Store) PopDiscover(ctx context.Context, namespace, task string, p Pop) ([]Popped, error) {
	return s.pop(ctx, "pop discovery",
		`SELECT meta, blobs FROM queen.log_pop_discover_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		namespace, task, p.Group, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, p.Tenant)
}

// PopList claims from the caller's candidates and judges each one it came to
// (log_pop_list_v1).
func (s *Store) PopList(ctx context.Context, queue string, partitions []string, skipWindow bool, p Pop) (PopListResult, error) {
	const call = `SELECT meta, blobs, states FROM queen.log_pop_list_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	var text, states []byte
	var blobs [][]byte
	err := s.scanOne(ctx, "pop list", call, []any{
		queue, p.Group, partitions, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, skipWindow, p.Tenant,
	}, &text, &blobs, &states)
	if err != nil {
		return PopListResult{}, err
	}
	var meta popMeta
	if err := json.Unmarshal(text, &meta); err != nil {
		return PopListResult{}, fmt.Errorf("pop list: %w: %w", errAnswer, err)
	}
	var result PopListResult
	if result.Claimed, err = meta.join(blobs); err != nil {
		return result, err
	}
	result.States, err = parseStates(states)
	return result, err
}

func parseStates(text []byte) ([]CandidateState, error) {
	var rows []struct {
		Partition string    `json:"p"`
		State     string    `json:"s"`
		Until     time.Time `json:"until"`
		LastOff   int64     `json:"lastOff"`
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("pop list: %w: %w", errAnswer, err)
	}
	states := make([]CandidateState, len(rows))
	for i, r := range rows {
		states[i] = CandidateState{Partition: r.Partition, State: r.State, Until: r.Until, LastOffset: r.LastOff}
	}
	return states, nil
}

// HasPending tells whether a pop of the queue may find something
// (log_has_pending_v1). It may err towards true.
func (s *Store) HasPending(ctx context.Context, tenant uuid.UUID, queue, group string) (pending bool, err error) {
	err = s.scanOne(ctx, "probe queue", `SELECT queen.log_has_pending_v1($1, $2, $3)`, []any{queue, group, tenant}, &pending)
	return pending, err
}

// PartitionHasPending is HasPending for one partition
// (log_partition_has_pending_v1).
func (s *Store) PartitionHasPending(ctx context.Context, tenant uuid.UUID, queue, partition, group string) (pending bool, err error) {
	err = s.scanOne(ctx, "probe partition", `SELECT queen.log_partition_has_pending_v1($1, $2, $3, $4)`,
		[]any{queue, partition, group, tenant}, &pending)
	return pending, err
}

// DiscoverHasPending is HasPending for the queues that carry the labels
// (log_discover_has_pending_v1).
func (s *Store) DiscoverHasPending(ctx context.Context, tenant uuid.UUID, namespace, task, group string) (pending bool, err error) {
	err = s.scanOne(ctx, "probe discovery", `SELECT queen.log_discover_has_pending_v1($1, $2, $3, $4)`,
		[]any{namespace, task, group, tenant}, &pending)
	return pending, err
}

// HotlistReseed lists partitions of a queue that probably have something for
// the group, leased ones included, with ids above after, ascending
// (log_hotlist_reseed_v1). Start with uuid.Nil.
func (s *Store) HotlistReseed(ctx context.Context, tenant uuid.UUID, queue, group string, after uuid.UUID, limit int) ([]PartitionRef, error) {
	var refs []PartitionRef
	err := s.db.Do(ctx, "reseed hot list", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT r_id, r_name FROM queen.log_hotlist_reseed_v1($1, $2, $3, $4, $5)`,
			queue, group, after, limit, tenant)
		if err != nil {
			return err
		}
		refs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[PartitionRef])
		return err
	})
	return refs, err
}
