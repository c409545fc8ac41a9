package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq/queen/pkg/segment"
)

// once sends a single request to the first broker and wants that status.
func (s *stack) once(ctx context.Context, request []byte, status int) error {
	c := newClient(s.addrs()[:1], 0)
	defer c.close()
	_, err := c.expect(ctx, request, status)
	return err
}

// register makes a group known on a queue that has no messages yet.
func (s *stack) register(ctx context.Context, queue string) error {
	return s.once(ctx, popRequest(queue, groupName(0), 1, 1, 0, ""), http.StatusNoContent)
}

// configure sets a queue's options (a JSON object).
func (s *stack) configure(ctx context.Context, queue, options string) error {
	body := fmt.Sprintf(`{"queue":%q,"options":%s}`, queue, options)
	return s.once(ctx, newRequest(http.MethodPost, "/api/v1/configure", body), http.StatusOK)
}

// runOnce runs a flow with a fixed number of requests, unmeasured.
func (s *stack) runOnce(ctx context.Context, f flow) error {
	load, err := newWorkload(f.shape)
	if err != nil {
		return err
	}
	r := f.prepare(s, load)
	r.run(ctx, make(chan struct{}), newWindow())
	var b block
	r.report(&b)
	if b.failures > 0 {
		return fmt.Errorf("prepare %s: %d failed: %w", f.shape.Queue, b.failures, b.err)
	}
	return ctx.Err()
}

// Preparing many lanes takes large requests: the clock does not run yet. One
// push is still few enough transactions to meet its deadline on a busy machine.
const (
	prepareBatch = 250
	prepareLanes = 256 // of one pop
)

// makeLanes creates lanes the way they come to be: the group is registered,
// then every lane gets a message, which the group reads.
func (s *stack) makeLanes(ctx context.Context, queue string, lanes int) error {
	progress("  making %d lanes in %s", lanes, queue)
	began := time.Now()
	if err := s.register(ctx, queue); err != nil {
		return err
	}
	batch := min(prepareBatch, lanes)
	err := s.runOnce(ctx, flow{
		shape:   shape{Queue: queue, Batch: batch, Lanes: lanes, Spread: true},
		pushers: 4, requests: int64((lanes + batch - 1) / batch), patient: true,
		groups: 1, consumers: 4, popBatch: 4 * prepareBatch, popLanes: prepareLanes,
	})
	if err != nil {
		return err
	}
	progress("  made in %s", time.Since(began).Round(time.Second/10))
	return s.settle(ctx)
}

// settle does at once what autovacuum would do in the middle of a block.
func (s *stack) settle(ctx context.Context) error {
	_, err := s.db.Exec(ctx, "VACUUM (ANALYZE)")
	return err
}

// bulk says what segments to write past the broker: as many as fast as possible.
type bulk struct {
	queue    string
	lanes    int
	segments int           // per lane
	messages int           // per segment
	age      time.Duration // of the first segment; the others are spread up to now
}

const (
	bulkProvision = `SELECT queen.log_provision_v1(array_fill($3::uuid, ARRAY[cardinality($2::text[])]),
		array_fill($1::text, ARRAY[cardinality($2::text[])]), $2::text[])`
	bulkSegments = `INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT p.id, g * $3::bigint, (g + 1) * $3::bigint - 1,
			now() - make_interval(secs => $4::float8 * (1 - g / $2::float8)), ($5::bytea[])[1 + g % cardinality($5::bytea[])]
		FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id, generate_series(0, $2::bigint - 1) AS g
		WHERE q.name = $1`
	bulkHashes = `INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
		SELECT s.partition_id, s.base_offset, s.end_offset, s.created_at, (
			SELECT decode(string_agg(md5(s.partition_id::text || (s.base_offset + i)::text), ''), 'hex')
			FROM generate_series(0, $2::bigint - 1) AS i)
		FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		JOIN queen.log_segments AS s ON s.partition_id = p.id
		WHERE q.name = $1`
	bulkLanes = `UPDATE queen.log_partitions AS p SET last_offset = $2::bigint * $3::bigint - 1, last_write_at = now()
		FROM queen.queues AS q WHERE q.id = p.queue_id AND q.name = $1`
)

// defaultTenant is the owner of everything without a tenancy header.
var defaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// write stores the segments in lanes that have none. Their transaction ids are
// nobody's: no message can be a duplicate of one of them.
func (k bulk) write(ctx context.Context, db *pgxpool.Pool, payload func() ([]byte, error)) error {
	blobs, err := k.blobs(payload)
	if err != nil {
		return err
	}
	names := make([]string, k.lanes)
	for i := range names {
		names[i] = laneName(i)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for _, step := range []struct {
		sql  string
		args []any
	}{
		{bulkProvision, []any{k.queue, names, defaultTenant}},
		{bulkSegments, []any{k.queue, k.segments, k.messages, k.age.Seconds(), blobs}},
		{bulkHashes, []any{k.queue, k.messages}},
		{bulkLanes, []any{k.queue, k.segments, k.messages}},
	} {
		if _, err := tx.Exec(ctx, step.sql, step.args...); err != nil {
			return fmt.Errorf("write segments of %s: %w", k.queue, err)
		}
	}
	return tx.Commit(ctx)
}

func (k bulk) blobs(payload func() ([]byte, error)) ([][]byte, error) {
	packer, err := segment.NewPacker(zstdLevel)
	if err != nil {
		return nil, err
	}
	var blobs [][]byte
	for range distinctBodies {
		payloads := make([][]byte, k.messages)
		for i := range payloads {
			if payloads[i], err = payload(); err != nil {
				return nil, err
			}
		}
		blob, _, err := packPayloads(packer, payloads)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, blob)
	}
	return blobs, nil
}
