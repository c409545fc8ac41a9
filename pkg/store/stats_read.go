package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// StatusFilter selects queues. Zero values do not filter; a Limit of 0 is a
// hundred.
type StatusFilter struct {
	Tenant                 uuid.UUID
	Queue, Namespace, Task string
	Limit, Offset          int
}

// StatusQueues lists queues with their reconciled figures (get_status_queues_v1).
func (s *Store) StatusQueues(ctx context.Context, f StatusFilter) (RawJSON, error) {
	filters := map[string]any{
		"_tenant": f.Tenant, "queue": f.Queue, "namespace": f.Namespace, "task": f.Task, "offset": f.Offset,
	}
	if f.Limit > 0 {
		filters["limit"] = f.Limit
	}
	body, err := json.Marshal(filters)
	if err != nil {
		return nil, fmt.Errorf("list queue status: write the filters: %w", err)
	}
	return s.rawJSON(ctx, "list queue status", `SELECT queen.get_status_queues_v1($1)`, string(body))
}

// Namespaces lists the namespaces of a tenant (get_namespaces_v1).
func (s *Store) Namespaces(ctx context.Context, tenant uuid.UUID) (RawJSON, error) {
	return s.rawJSON(ctx, "list namespaces", `SELECT queen.get_namespaces_v1($1)`, tenant)
}

// Tasks lists the tasks of a tenant (get_tasks_v1).
func (s *Store) Tasks(ctx context.Context, tenant uuid.UUID) (RawJSON, error) {
	return s.rawJSON(ctx, "list tasks", `SELECT queen.get_tasks_v1($1)`, tenant)
}

// StatsOverview adds up the reconciled figures of a tenant (get_stats_overview_v1).
func (s *Store) StatsOverview(ctx context.Context, tenant uuid.UUID) (RawJSON, error) {
	return s.rawJSON(ctx, "read the statistics", `SELECT queen.get_stats_overview_v1($1)`, tenant)
}

// Overview is the overview of a tenant: of the whole installation for the default one
// (get_overview_v1).
func (s *Store) Overview(ctx context.Context, tenant uuid.UUID) (RawJSON, error) {
	return s.rawJSON(ctx, "read the overview", `SELECT queen.get_overview_v1($1)`, tenant)
}
