package store_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

const group = "g"

// ackState is a row of log_consumers without its times.
type ackState struct {
	Committed     int64
	BatchEnd      *int64
	Worker        *string
	Retries       int
	AttemptOffset *int64
	Attempts      int
	Consumed      int64
}

func (b *bench) state(pid uuid.UUID, group string) ackState {
	b.t.Helper()
	var c ackState
	b.one([]any{&c.Committed, &c.BatchEnd, &c.Worker, &c.Retries, &c.AttemptOffset, &c.Attempts, &c.Consumed},
		`SELECT committed, batch_end, worker_id, batch_retry_count, attempt_offset, attempt_count, total_consumed
		FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2`, pid, group)
	return c
}

// cursorAt creates a cursor without a lease.
func (b *bench) cursorAt(pid uuid.UUID, group string, committed int64) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)`, pid, group, committed)
}

// leased creates a cursor whose batch (committed, end] worker holds for a minute,
// on its second attempt, one retry spent, ten messages consumed so far.
func (b *bench) leased(pid uuid.UUID, group, worker string, committed, end int64) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, worker_id, lease_acquired_at,
			lease_expires_at, batch_retry_count, attempt_offset, attempt_count, total_consumed)
		VALUES ($1, $2, $3::bigint, $4, $5, now(), now() + interval '1 minute', 1, $3::bigint + 1, 2, 10)`, pid, group, committed, end, worker)
}

func (b *bench) expireLease(pid uuid.UUID, group string) {
	b.t.Helper()
	b.exec(`UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 second' WHERE partition_id = $1 AND consumer_group = $2`, pid, group)
}

// lane stores the ids 0 to 7 at the offsets of the same numbers, in segments of
// different lengths, as partition p of queue q.
func (b *bench) lane() uuid.UUID {
	b.t.Helper()
	return b.laneOf("q")
}

func (b *bench) laneOf(queue string) uuid.UUID {
	b.t.Helper()
	v := b.queued(segment(queue, "p", 0, 1))
	b.queued(segment(queue, "p", 2))
	b.queued(segment(queue, "p", 3, 4, 5))
	b.queued(segment(queue, "p", 6, 7))
	return v.PartitionID
}

// in is the same database for a subtest.
func (b *bench) in(t *testing.T) *bench { return &bench{t: t, db: b.db, store: b.store} }

func hashes(ids ...uint64) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = [16]byte(hash(id))
	}
	return out
}

func statuses(s ...store.AckStatus) []store.AckStatus { return s }

func ptr[T any](v T) *T { return &v }

const (
	ok     = store.AckCompleted
	failed = store.AckFailed
	retry  = store.AckRetry
	dlq    = store.AckDLQ
)

// held and free are the cursor of leased(pid, group, "w", 0, 4) with the batch
// still held and given back.
func held(committed, consumed int64, retries int) ackState {
	return ackState{committed, ptr(int64(4)), ptr("w"), retries, ptr(int64(1)), 2, consumed}
}

func free(committed, consumed int64, retries int) ackState {
	return ackState{committed, nil, nil, retries, ptr(int64(1)), 2, consumed}
}

func finished(committed, consumed int64) ackState {
	return ackState{Committed: committed, Consumed: consumed}
}
