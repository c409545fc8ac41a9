package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// GroupStepLanes is how many lanes one step of a seek or of a deletion takes: its
// transaction holds their cursors for some hundred milliseconds at most.
const GroupStepLanes = 5000

// GroupStep is how far a change of the cursors of a group has come. The zero value is
// its beginning.
type GroupStep struct {
	// Answer is what is to be answered when this was the last step.
	Answer RawJSON
	// More says that there is another one.
	More bool

	after uuid.UUID // the lane to go on behind
	done  int64     // lanes so far
}

// SeekTo is where a seek moves cursors: to the end, or else to the first segment that
// is not older than At.
type SeekTo struct {
	End bool
	At  time.Time
}

// args are the arguments of the procedures.
func (to SeekTo) args() (end bool, at *time.Time) {
	if to.End {
		return true, nil
	}
	return false, &to.At
}

// SeekStep moves the cursors of a group in the next lanes of a queue
// (log_seek_step_v1). What it moved stays moved when a later step fails.
func (s *Store) SeekStep(ctx context.Context, tenant uuid.UUID, queue, group string, to SeekTo, step GroupStep) (GroupStep, error) {
	end, at := to.args()
	return s.groupStep(ctx, "seek", `SELECT r_after, r_done, r_answer FROM queen.log_seek_step_v1($1, $2, $3, $4, $5, $6, $7, $8)`,
		group, queue, end, at, tenant, step.after, GroupStepLanes, step.done)
}

// SeekPartition moves the cursor of a group in one lane (log_seek_partition_v1).
func (s *Store) SeekPartition(ctx context.Context, tenant uuid.UUID, queue, partition, group string, to SeekTo) (RawJSON, error) {
	end, at := to.args()
	return s.rawJSON(ctx, "seek partition", `SELECT queen.log_seek_partition_v1($1, $2, $3, $4, $5, $6)`,
		group, queue, partition, end, at, tenant)
}

// GroupQueues lists the queues of which a group has anything (log_group_queues_v1).
func (s *Store) GroupQueues(ctx context.Context, tenant uuid.UUID, group string) ([]string, error) {
	var queues []string
	err := s.scanOne(ctx, "list queues of group",
		`SELECT COALESCE(array_agg(r_queue), '{}') FROM queen.log_group_queues_v1($1, $2)`, []any{group, tenant}, &queues)
	return queues, err
}

// DeleteGroupLabels removes the registrations of a group for namespaces and tasks, if
// metadata says so. It is the first step of a deletion from all queues, which goes on
// with DeleteGroupStep.
func (s *Store) DeleteGroupLabels(ctx context.Context, tenant uuid.UUID, group string, metadata bool) (GroupStep, error) {
	return s.deleteGroupStep(ctx, tenant, nil, group, metadata, GroupStep{})
}

// DeleteGroupStep removes the next cursors of a group in a queue and, with the first
// of them and if metadata says so, its registration there (log_delete_group_step_v1).
// A step that was the last one in a queue is the beginning in the next queue.
func (s *Store) DeleteGroupStep(ctx context.Context, tenant uuid.UUID, queue, group string, metadata bool, step GroupStep) (GroupStep, error) {
	return s.deleteGroupStep(ctx, tenant, &queue, group, metadata, step)
}

func (s *Store) deleteGroupStep(ctx context.Context, tenant uuid.UUID, queue *string, group string, metadata bool, step GroupStep) (GroupStep, error) {
	return s.groupStep(ctx, "delete group", `SELECT r_after, r_done, r_answer FROM queen.log_delete_group_step_v1($1, $2, $3, $4, $5, $6, $7)`,
		group, queue, metadata, tenant, step.after, GroupStepLanes, step.done)
}

func (s *Store) groupStep(ctx context.Context, name, call string, args ...any) (GroupStep, error) {
	var next GroupStep
	var after *uuid.UUID
	var answer []byte
	if err := s.scanOne(ctx, name, call, args, &after, &next.done, &answer); err != nil {
		return GroupStep{}, err
	}
	next.Answer = answer
	if after != nil {
		next.More, next.after = true, *after
	}
	return next, nil
}

// Subscribe sets where a group starts in the lanes that it has not touched yet
// (update_consumer_group_subscription_v1).
func (s *Store) Subscribe(ctx context.Context, tenant uuid.UUID, group string, at time.Time) (RawJSON, error) {
	return s.rawJSON(ctx, "set subscription", `SELECT queen.update_consumer_group_subscription_v1($1, $2, $3)`, group, at, tenant)
}
