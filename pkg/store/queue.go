package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Configure writes the options of a queue, creating it when needed
// (configure_queue_v1). options is a JSON object; merge keeps what it omits.
// An answer with the key "invalid" wrote nothing. The mode is set here, so that
// no key of the client's own can choose it.
func (s *Store) Configure(ctx context.Context, tenant uuid.UUID, queue string, options json.RawMessage, merge bool) (RawJSON, error) {
	if len(options) == 0 {
		options = json.RawMessage("{}")
	}
	return s.rawJSON(ctx, "configure",
		`SELECT queen.configure_queue_v1($1, $2::JSONB || jsonb_build_object('_merge', $3::BOOLEAN), $4)`,
		queue, string(options), merge, tenant)
}

// DeleteQueue removes a queue with everything in it (delete_queue_v1).
func (s *Store) DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (RawJSON, error) {
	return s.rawJSON(ctx, "delete queue", `SELECT queen.delete_queue_v1($1, $2)`, queue, tenant)
}

// ListQueues is the queue listing of a tenant (list_queues_v1); cached takes every
// figure from the last refresh of the statistics.
func (s *Store) ListQueues(ctx context.Context, tenant uuid.UUID, cached bool) (RawJSON, error) {
	return s.rawJSON(ctx, "list queues", `SELECT queen.list_queues_v1($1, $2)`, tenant, cached)
}

// GetQueue is the detail of one queue (get_queue_v2); an unknown one answers an
// object with the key "error".
func (s *Store) GetQueue(ctx context.Context, tenant uuid.UUID, queue string) (RawJSON, error) {
	return s.rawJSON(ctx, "read queue", `SELECT queen.get_queue_v2($1, $2)`, queue, tenant)
}

// QueueDetail is one queue with what its groups do (get_queue_detail_v2); an unknown one
// answers an object with the key "error".
func (s *Store) QueueDetail(ctx context.Context, tenant uuid.UUID, queue string) (RawJSON, error) {
	return s.rawJSON(ctx, "read queue detail", `SELECT queen.get_queue_detail_v2($1, $2)`, queue, tenant)
}

// QueueDepth is how much of a queue waits, for a group or, if it is empty, for the slowest
// one (log_queue_depth_v1). It is nil for an unknown queue.
func (s *Store) QueueDepth(ctx context.Context, tenant uuid.UUID, queue, group string) (RawJSON, error) {
	return s.rawJSON(ctx, "read queue depth", `SELECT queen.log_queue_depth_v1($1, NULLIF($2, ''), $3)`, queue, group, tenant)
}

// QueueSettings reads what the broker acts on (queue_settings_v1); false for an
// unknown queue.
func (s *Store) QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (QueueSettings, bool, error) {
	var q QueueSettings
	err := s.scanOne(ctx, "read queue settings",
		`SELECT r_id, r_dedup_window, r_encryption_enabled, r_min_pop_wait, r_window_buffer, r_delayed_processing, r_lease_time
		FROM queen.queue_settings_v1($1, $2)`, []any{queue, tenant},
		&q.ID, &q.DedupWindow, &q.EncryptionEnabled, &q.MinPopWaitMillis, &q.WindowBuffer, &q.DelayedProcessing, &q.LeaseTime)
	if errors.Is(err, pgx.ErrNoRows) {
		return QueueSettings{}, false, nil
	}
	return q, err == nil, err
}
