package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// TimeseriesFilter selects the points of a series. Zero values do not filter, and stand
// for the last hour, or day where the series is one of intervals.
type TimeseriesFilter struct {
	Tenant    uuid.UUID `json:"_tenant"`
	Queue     string    `json:"queue,omitempty"`
	Namespace string    `json:"namespace,omitempty"`
	Task      string    `json:"task,omitempty"`
	Hostname  string    `json:"hostname,omitempty"`
	Worker    *int      `json:"workerId,omitempty"`
	From      time.Time `json:"from,omitzero"`
	To        time.Time `json:"to,omitzero"`
	Interval  string    `json:"interval,omitempty"` // minute, hour or day
	GroupBy   string    `json:"groupBy,omitempty"`  // namespace, task or queue
}

// LivenessFilter selects queues by their names and labels, where nil does not filter
// and an empty text is a label like any other.
type LivenessFilter struct {
	Tenant    uuid.UUID `json:"_tenant"`
	Queue     *string   `json:"queue,omitempty"`
	Namespace *string   `json:"namespace,omitempty"`
	Task      *string   `json:"task,omitempty"`
	Limit     int       `json:"limit,omitzero"` // 20, 200 at most
}

// SignatureFilter selects the dead letters of a queue.
type SignatureFilter struct {
	Tenant uuid.UUID `json:"_tenant"`
	Queue  string    `json:"queue"`
	Limit  int       `json:"limit,omitzero"` // of those that are looked at: 200, 1000 at most
}

// filtered runs a reader that takes a document of filters.
func (s *Store) filtered(ctx context.Context, name, call string, filter any) (RawJSON, error) {
	doc, err := json.Marshal(filter)
	if err != nil {
		return nil, fmt.Errorf("%s: write the filters: %w", name, err)
	}
	return s.rawJSON(ctx, name, call, string(doc))
}

// Analytics is the volume of messages over time (get_analytics_v1).
func (s *Store) Analytics(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read message volume", `SELECT queen.get_analytics_v1($1)`, f)
}

// QueueLag is the age of messages at their delivery over time (get_queue_lag_v1).
func (s *Store) QueueLag(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read queue lag", `SELECT queen.get_queue_lag_v1($1)`, f)
}

// QueueOps is what was done with queues over time (get_queue_ops_v1).
func (s *Store) QueueOps(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read queue operations", `SELECT queen.get_queue_ops_v1($1)`, f)
}

// QueueParkedReplicas is where pops waited over time (get_queue_parked_replicas_v1).
func (s *Store) QueueParkedReplicas(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read parked pops", `SELECT queen.get_queue_parked_replicas_v1($1)`, f)
}

// RetentionTimeseries is what retention has deleted over time
// (get_retention_timeseries_v1).
func (s *Store) RetentionTimeseries(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read retention series", `SELECT queen.get_retention_timeseries_v1($1)`, f)
}

// Workload is what the queues of a label do, beside all of them (get_workload_v1).
func (s *Store) Workload(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read workload", `SELECT queen.get_workload_v1($1)`, f)
}

// WorkerMetrics is what the processes have counted over time (get_worker_metrics_v1).
func (s *Store) WorkerMetrics(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read worker metrics", `SELECT queen.get_worker_metrics_v1($1)`, f)
}

// SystemMetrics is the state of the processes over time (get_system_metrics_v1).
func (s *Store) SystemMetrics(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read system metrics", `SELECT queen.get_system_metrics_v1($1)`, f)
}

// Status is the state of the installation (get_status_v1).
func (s *Store) Status(ctx context.Context, f TimeseriesFilter) (RawJSON, error) {
	return s.filtered(ctx, "read status", `SELECT queen.get_status_v1($1)`, f)
}

// PartitionLiveness is how many partitions of the largest queues are alive
// (get_partition_liveness_v1).
func (s *Store) PartitionLiveness(ctx context.Context, f LivenessFilter) (RawJSON, error) {
	return s.filtered(ctx, "read partition liveness", `SELECT queen.get_partition_liveness_v1($1)`, f)
}

// DLQSignatures is what the dead letters of a queue have in common
// (get_dlq_signatures_v1).
func (s *Store) DLQSignatures(ctx context.Context, f SignatureFilter) (RawJSON, error) {
	return s.filtered(ctx, "read dead letters", `SELECT queen.get_dlq_signatures_v1($1)`, f)
}

// PostgresStats is what PostgreSQL knows about itself (get_postgres_stats_v1).
func (s *Store) PostgresStats(ctx context.Context) (RawJSON, error) {
	return s.rawJSON(ctx, "read PostgreSQL statistics", `SELECT queen.get_postgres_stats_v1()`)
}
