package store_test

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// Whether one partition is asked for or more, in documents or in rows: equal queues
// must give the same slices, verdicts and cursors.
func TestOneLaneIsClaimedAsTheSetWouldClaimIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pops   []store.Pop
		before string // on the lane and cursor of a queue, by its name
	}{
		"whole segments":          {pops: []store.Pop{{Budget: 100}}},
		"a part, twice the same":  {pops: []store.Pop{{Budget: 2, LeaseSeconds: -1}, {Budget: 2}}},
		"auto ack, part by part":  {pops: []store.Pop{{Budget: 2, AutoAck: true}, {Budget: 1, AutoAck: true}, {Budget: 50, AutoAck: true}, {Budget: 50, AutoAck: true}}},
		"few bytes":               {pops: []store.Pop{{Budget: 100, MaxBytes: 1, AutoAck: true}, {Budget: 100, MaxBytes: 5, AutoAck: true}}},
		"own lease time":          {pops: []store.Pop{{Budget: 3, LeaseSeconds: 7}}},
		"leased already":          {pops: []store.Pop{{Budget: 3}, {Budget: 3}}},
		"nothing pending":         {pops: []store.Pop{{Budget: 100, AutoAck: true}, {Budget: 100}}},
		"a gap at the cursor":     {pops: []store.Pop{{Budget: 4}}, before: `DELETE FROM queen.log_segments s USING queen.log_partitions p, queen.queues q WHERE s.partition_id = p.id AND p.queue_id = q.id AND q.name = $1 AND s.base_offset = 0`},
		"emptied by retention":    {pops: []store.Pop{{Budget: 4}}, before: `DELETE FROM queen.log_segments s USING queen.log_partitions p, queen.queues q WHERE s.partition_id = p.id AND p.queue_id = q.id AND q.name = $1`},
		"a queue that holds back": {pops: []store.Pop{{Budget: 4}}, before: `UPDATE queen.queues SET delayed_processing = 60 WHERE name = $1`},
		"no cursor yet":           {pops: []store.Pop{{Budget: 4}}, before: `DELETE FROM queen.log_consumers c USING queen.log_partitions p, queen.queues q WHERE c.partition_id = p.id AND p.queue_id = q.id AND q.name = $1`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			one, set, rows := b.twin("one", c.before), b.twin("set", c.before), b.twin("rows", c.before)
			for i, p := range c.pops {
				p.Tenant, p.Group, p.Worker, p.SubMode = store.DefaultTenant(), "g", "w", "all"
				p.MaxPartitions = 1
				first, err := b.store.PopListDocuments(t.Context(), "one", []string{"p"}, false, p)
				require.NoError(t, err)
				third, err := b.store.PopList(t.Context(), "rows", []string{"p"}, false, p)
				require.NoError(t, err)
				p.MaxPartitions = 2
				second, err := b.store.PopListDocuments(t.Context(), "set", []string{"p"}, false, p)
				require.NoError(t, err)
				require.Equal(t, ordered(second), ordered(first), "pop %d", i)
				require.Equal(t, b.cursor(set), b.cursor(one), "pop %d", i)
				require.Equal(t, ordered(second), ordered(third), "pop %d", i)
				require.Equal(t, b.cursor(set), b.cursor(rows), "pop %d", i)
			}
		})
	}
}

// twin makes a queue of three segments in one lane with a seeded cursor.
func (b *bench) twin(queue, before string) uuid.UUID {
	b.t.Helper()
	pid := b.queued(segment(queue, "p", 1, 2, 3)).PartitionID
	b.queued(segment(queue, "p", 4))
	b.queued(segment(queue, "p", 5, 6))
	_, err := b.store.PopWildcard(b.t.Context(), queue, store.Pop{
		Tenant: store.DefaultTenant(), Group: "g", Worker: "seed", Budget: 1, MaxPartitions: 1, SubMode: "all", LeaseSeconds: 1,
	})
	require.NoError(b.t, err)
	b.exec(`UPDATE queen.log_consumers SET worker_id = NULL, lease_expires_at = NULL, batch_end = NULL, attempt_offset = NULL, attempt_count = 0
		WHERE partition_id = $1`, pid)
	if before != "" {
		b.exec(before, queue)
	}
	return pid
}

// neutral leaves out what two lanes cannot share: ids and points in time.
func neutral(r store.PopListResult) store.PopListResult {
	for i := range r.Claimed {
		r.Claimed[i].PartitionID = uuid.Nil
		for k := range r.Claimed[i].Segments {
			s := &r.Claimed[i].Segments[k]
			s.CreatedAt, s.Blob = "", bytes.Clone(s.Blob)
		}
	}
	for i := range r.States {
		if !r.States[i].Until.IsZero() {
			r.States[i].Until = r.States[i].Until.Truncate(1 << 62)
		}
	}
	return r
}

// cursor is what a claim writes, but for points in time.
func (b *bench) cursor(pid uuid.UUID) (row string) {
	b.t.Helper()
	b.one([]any{&row}, `SELECT COALESCE((SELECT ROW(committed, batch_end, worker_id, batch_retry_count, attempt_offset, attempt_count, total_consumed,
			round(extract(epoch FROM lease_expires_at - lease_acquired_at)))::text
		FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'g'), 'none')`, pid)
	return row
}
