package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// popBench is a bench with what pop tests need.
type popBench struct{ *bench }

func setupPop(t *testing.T) *popBench {
	t.Helper()
	return &popBench{setup(t)}
}

// on returns the bench for a subtest that shares the database.
func (b *popBench) on(t *testing.T) *popBench {
	t.Helper()
	return &popBench{&bench{t: t, db: b.db, store: b.store}}
}

// laid is one stored segment, written by hand so that a test rules its offsets,
// age and blob.
type laid struct {
	base, n int64
	age     time.Duration
	blob    []byte // nil: one byte
}

// lay makes the queue and the lane when they are missing, and writes segments.
// last_offset and last_write_at follow them.
func (b *popBench) lay(queue, partition string, segs ...laid) uuid.UUID {
	b.t.Helper()
	var pid uuid.UUID
	b.exec(`INSERT INTO queen.queues (name) VALUES ($1) ON CONFLICT DO NOTHING`, queue)
	b.one([]any{&pid}, `INSERT INTO queen.log_partitions (queue_id, name)
		SELECT id, $2 FROM queen.queues WHERE name = $1
		ON CONFLICT (queue_id, name) DO UPDATE SET name = excluded.name RETURNING id`, queue, partition)
	for _, s := range segs {
		if s.blob == nil {
			s.blob = []byte{1}
		}
		b.exec(`INSERT INTO queen.log_segments VALUES ($1, $2, $3, clock_timestamp() - make_interval(secs => $4), $5)`,
			pid, s.base, s.base+s.n-1, s.age.Seconds(), s.blob)
		b.exec(`UPDATE queen.log_partitions SET last_offset = greatest(last_offset, $2), last_write_at = now() WHERE id = $1`,
			pid, s.base+s.n-1)
	}
	return pid
}

// option sets one column of a queue row.
func (b *popBench) option(queue, column string, value any) {
	b.t.Helper()
	b.exec(`UPDATE queen.queues SET `+pgx.Identifier{column}.Sanitize()+` = $2 WHERE name = $1`, queue, value)
}

// popCursor is a consumer row; zero values stand for NULL.
type popCursor struct {
	Committed, BatchEnd, AttemptOffset, Consumed int64
	Worker                                       string
	Attempts, Retries, LeaseSeconds              int
}

func (b *popBench) cursor(pid uuid.UUID, group string) popCursor {
	b.t.Helper()
	var c popCursor
	b.one([]any{&c.Committed, &c.BatchEnd, &c.AttemptOffset, &c.Consumed, &c.Worker, &c.Attempts, &c.Retries, &c.LeaseSeconds},
		`SELECT committed, coalesce(batch_end, 0), coalesce(attempt_offset, 0), total_consumed, coalesce(worker_id, ''),
			attempt_count, batch_retry_count, coalesce(round(extract(epoch FROM lease_expires_at - lease_acquired_at)), 0)::int
		FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2`, pid, group)
	return c
}

// start puts a cursor in place.
func (b *popBench) start(pid uuid.UUID, group string, committed int64) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = excluded.committed`, pid, group, committed)
}

func (b *popBench) cursors(pid uuid.UUID) int64 {
	b.t.Helper()
	return b.count(`SELECT count(*) FROM queen.log_consumers WHERE partition_id = $1`, pid)
}

// expire ends the leases on a lane.
func (b *popBench) expire(pid uuid.UUID) {
	b.t.Helper()
	b.exec(`UPDATE queen.log_consumers SET lease_expires_at = now() - interval '1 second' WHERE partition_id = $1`, pid)
}

// popArgs is what most tests ask for.
func popArgs(group string, budget int) store.Pop {
	return store.Pop{Tenant: store.DefaultTenant(), Group: group, Budget: budget, Worker: "w-" + group}
}

// span is a delivered run of offsets of one lane.
type span struct {
	partition   string
	first, last int64
}

// spans flattens what was popped; neighbouring slices are joined.
func spans(popped []store.Popped) []span {
	var out []span
	for _, p := range popped {
		for _, s := range p.Segments {
			first, last := s.Base+int64(s.Start), s.Base+int64(s.Start+s.Take)-1
			if n := len(out); n > 0 && out[n-1].partition == p.Partition && out[n-1].last+1 == first {
				out[n-1].last = last
				continue
			}
			out = append(out, span{p.Partition, first, last})
		}
	}
	return out
}

func (b *popBench) specific(queue, partition string, p store.Pop) []span {
	b.t.Helper()
	popped, err := b.store.PopSpecific(b.t.Context(), queue, partition, p)
	require.NoError(b.t, err)
	return spans(popped)
}

func (b *popBench) wildcard(queue string, p store.Pop) []span {
	b.t.Helper()
	popped, err := b.store.PopWildcard(b.t.Context(), queue, p)
	require.NoError(b.t, err)
	return spans(popped)
}

func (b *popBench) discover(namespace, task string, p store.Pop) []span {
	b.t.Helper()
	popped, err := b.store.PopDiscover(b.t.Context(), namespace, task, p)
	require.NoError(b.t, err)
	return spans(popped)
}

func (b *popBench) list(queue string, partitions []string, p store.Pop) store.PopListResult {
	b.t.Helper()
	result, err := b.store.PopList(b.t.Context(), queue, partitions, false, p)
	require.NoError(b.t, err)
	return result
}

// hold runs statements in a transaction of another session that stays open until
// release is called (at the latest by the end of the test).
func (b *popBench) hold(sql string, args ...any) (release func()) {
	b.t.Helper()
	ctx := context.WithoutCancel(b.t.Context())
	conn, err := b.db.Session(ctx)
	require.NoError(b.t, err)
	tx, err := conn.Begin(ctx)
	require.NoError(b.t, err)
	_, err = tx.Exec(ctx, sql, args...)
	require.NoError(b.t, err)
	done := false
	release = func() {
		if !done {
			done = true
			_ = tx.Commit(ctx)
			_ = conn.Close(ctx)
		}
	}
	b.t.Cleanup(release)
	return release
}

// inTx runs fn inside one transaction, for statistics of that transaction.
func (b *popBench) inTx(fn func(ctx context.Context, tx pgx.Tx) error) {
	b.t.Helper()
	require.NoError(b.t, b.db.Do(b.t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return fn(ctx, tx) })
	}))
}
