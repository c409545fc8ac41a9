package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// HasPending tells whether a pop of the queue may find something
// (log_has_pending_v1). It may err towards true.
func (s *Store) HasPending(ctx context.Context, tenant uuid.UUID, queue, group string) (pending bool, err error) {
	err = s.scanOne(ctx, "probe queue", `SELECT queen.log_has_pending_v1($1, $2, $3)`, []any{queue, group, tenant}, &pending)
	return pending, err
}

// PopEstimate counts, up to limit, what one wildcard pop over at most
// partitions lanes (0: all) could take now (log_pop_estimate_v1).
func (s *Store) PopEstimate(ctx context.Context, tenant uuid.UUID, queue, group string, partitions, limit int) (n int, err error) {
	err = s.scanOne(ctx, "estimate pop", `SELECT queen.log_pop_estimate_v1($1, $2, $3, $4, $5)`,
		[]any{queue, group, partitions, limit, tenant}, &n)
	return n, err
}

// PartitionHasPending is HasPending for one partition
// (log_partition_has_pending_v1).
func (s *Store) PartitionHasPending(ctx context.Context, tenant uuid.UUID, queue, partition, group string) (pending bool, err error) {
	err = s.scanOne(ctx, "probe partition", `SELECT queen.log_partition_has_pending_v1($1, $2, $3, $4)`,
		[]any{queue, partition, group, tenant}, &pending)
	return pending, err
}

// LanesPending is PartitionHasPending for many partitions and groups
// (log_lanes_pending_v1). It answers the positions for which it is true.
func (s *Store) LanesPending(ctx context.Context, lanes []LaneGroup) ([]int, error) {
	tenants, queues, groups := make([]uuid.UUID, len(lanes)), make([]string, len(lanes)), make([]string, len(lanes))
	partitions := make([]string, len(lanes))
	for i, l := range lanes {
		tenants[i], queues[i], groups[i], partitions[i] = l.Tenant, l.Queue, l.Group, l.Partition
	}
	var found []int
	err := s.db.Do(ctx, "probe partitions", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT r_ord - 1 FROM queen.log_lanes_pending_v1($1, $2, $3, $4)`, tenants, queues, partitions, groups)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
	return found, err
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

// HotlistRing names a group of a queue.
type HotlistRing struct {
	Tenant       uuid.UUID
	Queue, Group string
}

// HotlistRow is a partition that may have something for one of the rings asked for.
type HotlistRow struct {
	Ring int // its place in the question
	PartitionRef
}

// HotlistRecent lists, for each of the rings, up to limit partitions written
// within a time that probably have something for the group
// (log_hotlist_recent_v1). It is rounded up to whole seconds.
func (s *Store) HotlistRecent(ctx context.Context, rings []HotlistRing, within time.Duration, limit int) ([]HotlistRow, error) {
	tenants, queues, groups := make([]uuid.UUID, len(rings)), make([]string, len(rings)), make([]string, len(rings))
	for i, r := range rings {
		tenants[i], queues[i], groups[i] = r.Tenant, r.Queue, r.Group
	}
	seconds := int((within + time.Second - 1) / time.Second)
	var found []HotlistRow
	err := s.db.Do(ctx, "watch hot list", func(ctx context.Context, conn *pgx.Conn) error {
		found = nil
		rows, err := conn.Query(ctx, `SELECT r_ring, r_id, r_name FROM queen.log_hotlist_recent_v1($1, $2, $3, $4, $5)`,
			tenants, queues, groups, seconds, limit)
		if err != nil {
			return err
		}
		var r HotlistRow
		_, err = pgx.ForEachRow(rows, []any{&r.Ring, &r.ID, &r.Name}, func() error {
			found = append(found, r)
			return nil
		})
		return err
	})
	return found, err
}
