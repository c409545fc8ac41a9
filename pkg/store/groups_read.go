package store

import (
	"context"

	"github.com/google/uuid"
)

// Groups lists the groups of a tenant, one element for each group and queue
// (get_consumer_groups_v4).
func (s *Store) Groups(ctx context.Context, tenant uuid.UUID) (RawJSON, error) {
	return s.rawJSON(ctx, "list groups", `SELECT queen.get_consumer_groups_v4($1)`, tenant)
}

// LaggingLanes lists the cursors whose next message has been waiting for longer than
// seconds, the longest first, limit of them at most (log_lagging_list_v1).
func (s *Store) LaggingLanes(ctx context.Context, tenant uuid.UUID, seconds, limit int) (RawJSON, error) {
	return s.rawJSON(ctx, "list lagging lanes", `SELECT queen.log_lagging_list_v1($1, $2, $3)`, seconds, tenant, limit)
}

// GroupPage selects cursors of one group, in the order of queue and partition.
type GroupPage struct {
	Group string
	Queue string // of this queue alone, unless it is empty
	After string // of partitions after this one, unless it is empty
	Limit int
}

// GroupDetails lists cursors of a group under the names of their queues
// (log_group_details_v1).
func (s *Store) GroupDetails(ctx context.Context, tenant uuid.UUID, p GroupPage) (RawJSON, error) {
	return s.rawJSON(ctx, "read group", `SELECT queen.log_group_details_v1($1, $2, NULLIF($3, ''), NULLIF($4, ''), $5)`,
		p.Group, tenant, p.Queue, p.After, p.Limit)
}
