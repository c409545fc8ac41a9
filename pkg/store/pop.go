package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// seedPage is how many cursors of a queue of very many partitions are seeded in
// one transaction.
const seedPage = 50_000

// popRow runs one pop call that answers one row, under its byte bound. The bound
// is a setting of the transaction: it is sent along with the call, so that a
// pop stays one round trip, and only when it differs from the default.
func (s *Store) popRow(ctx context.Context, name string, maxBytes int64, call string, args []any, dest ...any) error {
	if maxBytes <= 0 {
		return s.scanOne(ctx, name, call, args, dest...)
	}
	return s.db.Do(ctx, name, func(ctx context.Context, conn *pgx.Conn) error {
		var batch pgx.Batch
		batch.Queue(`SELECT set_config('queen.pop_max_bytes', $1, TRUE)`, strconv.FormatInt(maxBytes, 10))
		batch.Queue(call, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
		return conn.SendBatch(ctx, &batch).Close()
	})
}

// pop runs one call that answers (meta, blobs).
func (s *Store) pop(ctx context.Context, name string, p Pop, call string, args ...any) (popAnswer, error) {
	var text []byte
	answer := popAnswer{name: name}
	if err := s.popRow(ctx, name, p.MaxBytes, call, args, &text, &answer.blobs); err != nil {
		return answer, err
	}
	if err := json.Unmarshal(text, &answer.meta); err != nil {
		return answer, fmt.Errorf("%s: %w: %w", name, errAnswer, err)
	}
	return answer, nil
}

// PopSpecific claims from one partition (log_pop_specific_bin_v1). It answers at
// most one element, and creates neither queue nor partition.
func (s *Store) PopSpecific(ctx context.Context, queue, partition string, p Pop) ([]Popped, error) {
	k := knownColumns(p.Known)
	answer, err := s.pop(ctx, "pop partition", p,
		`SELECT meta, blobs FROM queen.log_pop_specific_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::text[]::timestamptz[])`,
		queue, partition, p.Group, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.SubMode, p.SubFrom, p.Tenant,
		k.partitions, k.bases, k.times)
	if err != nil {
		return nil, err
	}
	return answer.popped()
}

// PopWildcard claims from partitions of a queue that the database chooses
// (log_pop_wildcard_bin_v1). It creates the queue, and registers the group on
// its first contact; on a queue of more partitions than one pop seeds it goes on
// seeding before it answers.
func (s *Store) PopWildcard(ctx context.Context, queue string, p Pop) ([]Popped, error) {
	answer, err := s.pop(ctx, "pop queue", p,
		`SELECT meta, blobs FROM queen.log_pop_wildcard_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		queue, p.Group, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, p.Tenant)
	if err != nil {
		return nil, err
	}
	// What was claimed is leased: a failure to seed must not lose it, and a cursor
	// that is not seeded here is seeded at its partition's first contact.
	for after := answer.meta.SeedAfter; after.Valid; {
		if after, err = s.seedGroup(ctx, p.Tenant, queue, p.Group, after.UUID, seedPage); err != nil {
			break
		}
	}
	return answer.popped()
}

// known is Pop.Known as the procedures take it: all NULL when there is none.
type known struct {
	partitions []uuid.UUID
	bases      []int64
	times      []string
}

func knownColumns(segments []KnownSegment) (k known) {
	for i := range segments {
		k.partitions = append(k.partitions, segments[i].PartitionID)
		k.bases = append(k.bases, segments[i].Base)
		k.times = append(k.times, segments[i].CreatedAt)
	}
	return k
}

// seedGroup seeds one more page of a group's cursors (log_seed_group_v1) and
// answers where the next one starts.
func (s *Store) seedGroup(
	ctx context.Context, tenant uuid.UUID, queue, group string, after uuid.UUID, limit int,
) (next uuid.NullUUID, err error) {
	err = s.scanOne(ctx, "seed group", `SELECT queen.log_seed_group_v1($1, $2, $3, $4, $5)`,
		[]any{queue, group, after, limit, tenant}, &next)
	return next, err
}

// PopDiscover claims over all queues that carry the labels
// (log_pop_discover_bin_v1). An empty label matches every queue.
func (s *Store) PopDiscover(ctx context.Context, namespace, task string, p Pop) ([]Popped, error) {
	answer, err := s.pop(ctx, "pop discovery", p,
		`SELECT meta, blobs FROM queen.log_pop_discover_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		namespace, task, p.Group, p.Budget, p.LeaseSeconds, p.Worker, p.AutoAck, p.MaxPartitions, p.SubMode, p.SubFrom, p.Tenant)
	if err != nil {
		return nil, err
	}
	return answer.popped()
}
