package harness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pollEvery is the pause between two looks of Eventually.
const pollEvery = 20 * time.Millisecond

// Eventually looks until done answers true, and fails after the limit.
func Eventually(t testing.TB, limit time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); {
		require.True(t, time.Now().Before(deadline), "not within %s: %s", limit, what)
		time.Sleep(pollEvery)
	}
}

// Cursor is the row of one group on one partition.
type Cursor struct {
	Committed     int64
	BatchEnd      *int64
	Worker        *string
	ExpiresAt     *time.Time
	AcquiredAt    *time.Time
	RetryCount    int
	AttemptOffset *int64
	AttemptCount  int
	TotalConsumed int64
}

// QueueMode is the group of consumers that name none.
const QueueMode = "__QUEUE_MODE__"

// Cursor reads the row of a group on a partition; absent rows are nil.
func (d *Database) Cursor(t testing.TB, queue, partition, group string) *Cursor {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), `
		SELECT c.committed, c.batch_end, c.worker_id, c.lease_expires_at, c.lease_acquired_at,
		       c.batch_retry_count, c.attempt_offset, c.attempt_count, c.total_consumed
		FROM queen.log_consumers c
		JOIN queen.log_partitions p ON p.id = c.partition_id
		JOIN queen.queues q ON q.id = p.queue_id
		WHERE q.name = $1 AND p.name = $2 AND c.consumer_group = $3`, queue, partition, group)
	require.NoError(t, err)
	defer rows.Close()
	if !rows.Next() {
		require.NoError(t, rows.Err())
		return nil
	}
	var c Cursor
	require.NoError(t, rows.Scan(&c.Committed, &c.BatchEnd, &c.Worker, &c.ExpiresAt, &c.AcquiredAt,
		&c.RetryCount, &c.AttemptOffset, &c.AttemptCount, &c.TotalConsumed))
	return &c
}

// Committed is the cursor of a group on a partition, which must exist.
func (d *Database) Committed(t testing.TB, queue, partition, group string) int64 {
	t.Helper()
	c := d.Cursor(t, queue, partition, group)
	require.NotNil(t, c, "cursor of %s on %s/%s", group, queue, partition)
	return c.Committed
}

// ExpireLeases lets every lease on a queue run out, and answers how many.
func (d *Database) ExpireLeases(t testing.TB, queue string) int64 {
	t.Helper()
	return d.Exec(t, `
		UPDATE queen.log_consumers c SET lease_expires_at = now() - interval '1 second'
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		WHERE p.id = c.partition_id AND q.name = $1 AND c.lease_expires_at IS NOT NULL`, queue)
}

// PartitionID is the id of a partition by name.
func (d *Database) PartitionID(t testing.TB, queue, partition string) string {
	t.Helper()
	return Value[string](t, d, `
		SELECT p.id::text FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		WHERE q.name = $1 AND p.name = $2`, queue, partition)
}

// HasQueue tells whether the queue's row exists.
func (d *Database) HasQueue(t testing.TB, queue string) bool {
	t.Helper()
	return Value[bool](t, d, `SELECT EXISTS (SELECT 1 FROM queen.queues WHERE name = $1)`, queue)
}
