package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// Step says what one bounded step has deleted of one lane.
type Step struct {
	Deleted  int64  // rows
	Messages int64  // frames in them
	Bytes    int64  // of their blobs, or hashes
	NewStart *int64 // the lane's mark; nil when the lane is gone
	Done     bool   // nothing more is due; always so when Deleted is 0
}

// RetentionStep deletes segments of one lane by rule 1 (all) and rule 2
// (completed), rows of them at most (log_retention_step_v1); nil switches a rule off.
// A step that waited too long for its lane fails (Locked) and has deleted nothing.
func (m *MaintenanceSession) RetentionStep(ctx context.Context, pid uuid.UUID, all, completed *time.Time, rows int) (Step, error) {
	return m.step(ctx, "retention step", `SELECT (r ->> 'deleted')::BIGINT, (r ->> 'messages')::BIGINT, (r ->> 'bytes')::BIGINT,
		(r ->> 'new_log_start')::BIGINT, (r ->> 'done')::BOOLEAN
		FROM queen.log_retention_step_v1($1, $2, $3, $4) AS r`, pid, all, completed, rows)
}

// TxnsStep deletes sidecar rows of one lane (log_txns_purge_step_v1).
func (m *MaintenanceSession) TxnsStep(ctx context.Context, pid uuid.UUID, cutoff time.Time, rows int) (Step, error) {
	return m.step(ctx, "sidecar purge step", `SELECT (r ->> 'deleted')::BIGINT, (r ->> 'messages')::BIGINT, (r ->> 'bytes')::BIGINT,
		(r ->> 'new_txns_start')::BIGINT, (r ->> 'done')::BOOLEAN
		FROM queen.log_txns_purge_step_v1($1, $2, $3) AS r`, pid, cutoff, rows)
}

// EvictStep deletes segments of one lane by age, whoever needs them
// (log_evict_max_wait_step_v1).
func (m *MaintenanceSession) EvictStep(ctx context.Context, pid uuid.UUID, cutoff time.Time, rows int) (Step, error) {
	return m.step(ctx, "eviction step", `SELECT (r ->> 'deleted')::BIGINT, (r ->> 'messages')::BIGINT, (r ->> 'bytes')::BIGINT,
		(r ->> 'new_log_start')::BIGINT, (r ->> 'done')::BOOLEAN
		FROM queen.log_evict_max_wait_step_v1($1, $2, $3) AS r`, pid, cutoff, rows)
}

func (m *MaintenanceSession) step(ctx context.Context, name, call string, args ...any) (Step, error) {
	var s Step
	if err := m.row(ctx, name, call, args, &s.Deleted, &s.Messages, &s.Bytes, &s.NewStart, &s.Done); err != nil {
		return Step{}, err
	}
	return s, nil
}

// Cleanup says what one step has done about dead partitions.
type Cleanup struct {
	Deleted  int64
	Examined int     // empty and long unwritten, vetoed ones included
	Last     LaneKey // where the next step goes on; the time is of the last write
	Done     bool    // the end was reached
}

// CleanupStep looks at rows empty partitions behind a key that were not written
// since the cutoff, and deletes those that are dead (log_partition_cleanup_step_v1).
func (m *MaintenanceSession) CleanupStep(ctx context.Context, cutoff time.Time, after LaneKey, rows int) (Cleanup, error) {
	var c Cleanup
	var at *time.Time
	var id *uuid.UUID
	err := m.row(ctx, "cleanup step", `SELECT (r ->> 'deleted')::BIGINT, (r ->> 'examined')::INT,
		(r ->> 'last_at')::TIMESTAMPTZ, (r ->> 'last_id')::UUID, (r ->> 'done')::BOOLEAN
		FROM queen.log_partition_cleanup_step_v1($1, $2, $3, $4) AS r`,
		[]any{cutoff, rows, after.At, after.ID}, &c.Deleted, &c.Examined, &at, &id, &c.Done)
	if err != nil {
		return Cleanup{}, err
	}
	c.Last = laneKey(at, id)
	return c, nil
}

// TimedOut tells that the server ended a call at its statement timeout: nothing was
// done.
func TimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "57014"
}
