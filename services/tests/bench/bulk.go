package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/queenmq/queen/pkg/segment"
)

// bulk says what to write past the broker, as many as fast as possible: new
// lanes with segments, hashes and cursors, as brokers would have left them.
type bulk struct {
	queue    string
	queues   int           // that many, numbered, with labels; 0: one of exactly that name
	lanes    int           // per queue
	segments int           // per lane
	messages int           // per segment
	age      time.Duration // of the first segment; the others are spread up to the age until
	until    time.Duration
	// spread is by how much more the last write of the oldest lane dates back than that
	// of the youngest, by whose age the hashes are kept; 0: time runs alike in all lanes.
	spread time.Duration
	groups int // how many groups have a cursor in every lane
	// unread is the share of a lane that the last group has not read; the others
	// have everything.
	unread float64
}

// hashesKept is how long the hashes of a queue with usual options are kept:
// those of older segments are gone.
const hashesKept = time.Hour

// The age of segment g is until + span * (1 - g / segments), and what its lane is older.
const (
	bulkQueue = `SELECT queen.log_provision_v1(array_fill($2::uuid, ARRAY[cardinality(n)]), n, array_fill(NULL::text, ARRAY[cardinality(n)]))
		FROM (SELECT $1::text[] AS n) AS names`
	bulkLanes = `INSERT INTO queen.log_partitions
			(queue_id, name, last_offset, txns_start, created_at, last_write_at, oldest_live_at, oldest_txn_at)
		SELECT l.id, @prefix || lpad(l.i::text, @digits, '0'), @segments::bigint * @messages - 1, @hashed::bigint * @messages,
			l.now - make_interval(secs => @until::float8 + @span),
			l.now - make_interval(secs => @until::float8 + @span / @segments),
			l.now - make_interval(secs => @until::float8 + @span),
			CASE WHEN @hashed::bigint < @segments
				THEN l.now - make_interval(secs => @until::float8 + @span * (1 - @hashed::float8 / @segments)) END
		FROM (
			SELECT q.id, i, now() - make_interval(secs => @spread::float8 * random()) AS now
			FROM queen.queues AS q, generate_series(0, @lanes::int - 1) AS i
			WHERE q.name = ANY (@queues)
		) AS l`
	// The segments of the lanes lie among each other, as they came.
	bulkSegments = `INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
		SELECT s.id, s.g * @messages::bigint, (s.g + 1) * @messages::bigint - 1,
			s.created_at + make_interval(secs => @span::float8 * s.g / @segments),
			(@blobs::bytea[])[1 + s.g % cardinality(@blobs::bytea[])]
		FROM (
			SELECT p.id, p.created_at, g
			FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id,
				generate_series(0, @segments::bigint - 1) AS g
			WHERE q.name = ANY (@queues)
			ORDER BY g
		) AS s`
	bulkHashes = `INSERT INTO queen.log_txns (partition_id, base_offset, end_offset, created_at, hashes)
		SELECT s.partition_id, s.base_offset, s.end_offset, s.created_at, (
			SELECT decode(string_agg(md5(s.partition_id::text || (s.base_offset + i)::text), ''), 'hex')
			FROM generate_series(0, @messages::bigint - 1) AS i)
		FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		JOIN queen.log_segments AS s ON s.partition_id = p.id AND s.base_offset >= p.txns_start
		WHERE q.name = ANY (@queues)`
	bulkCursors = `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, total_consumed, created_at)
		SELECT p.id, @group || g.i, g.read - 1, g.read, p.created_at
		FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		CROSS JOIN LATERAL (
			SELECT i, (p.last_offset + 1) - CASE WHEN i = @groups::int - 1
				THEN ceil(@unread::float8 * (p.last_offset + 1))::bigint ELSE 0 END AS read
			FROM generate_series(0, @groups::int - 1) AS i
		) AS g
		WHERE q.name = ANY (@queues)`
)

// Of numbered queues so many are named alike up to the first dot, and the second one.
const (
	bulkNamespaces = 10
	bulkTasks      = 40
)

// names are those of the queues.
func (k bulk) names() []string {
	if k.queues == 0 {
		return []string{k.queue}
	}
	names := make([]string, k.queues)
	for i := range names {
		names[i] = fmt.Sprintf("team%d.task%d.%s%d", i%bulkNamespaces, i%bulkTasks, k.queue, i)
	}
	return names
}

// defaultTenant is the owner of everything without a tenancy header.
var defaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// write stores the lanes. Their transaction ids are nobody's: no message can be
// a duplicate of one of them.
func (k bulk) write(ctx context.Context, db *pgxpool.Pool, payload func() ([]byte, error)) error {
	blobs, err := k.blobs(payload)
	if err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, bulkQueue, k.names(), defaultTenant); err != nil {
		return fmt.Errorf("create %s: %w", k.queue, err)
	}
	args := pgx.NamedArgs{
		"queues": k.names(), "lanes": k.lanes, "segments": k.segments, "messages": k.messages,
		"until": k.until.Seconds(), "span": (k.age - k.until).Seconds(), "spread": k.spread.Seconds(),
		"hashed": k.withoutHashes(),
		"groups": k.groups, "unread": k.unread, "blobs": blobs,
		"prefix": lanePrefix, "digits": laneDigits, "group": groupPrefix,
	}
	for _, step := range []string{bulkLanes, bulkSegments, bulkHashes, bulkCursors} {
		if _, err := tx.Exec(ctx, step, args); err != nil {
			return fmt.Errorf("write %s: %w", k.queue, err)
		}
	}
	return tx.Commit(ctx)
}

// withoutHashes is how many segments at the start of a lane are too old to have
// their hashes.
func (k bulk) withoutHashes() int {
	g := 0
	for g < k.segments && k.until+(k.age-k.until)*time.Duration(k.segments-g)/time.Duration(k.segments) > hashesKept {
		g++
	}
	return g
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
