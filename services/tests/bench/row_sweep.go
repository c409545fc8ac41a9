package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	sweepRate  = 5000 // segments per second
	sweepRatio = 0.6  // of a plain DELETE
)

// runSweep compares the maintainer with a plain DELETE of a copy of the rows, one
// part of the backlog after another.
func runSweep(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		parts, err := b.makeParts(ctx, s, out)
		if err != nil {
			return err
		}
		if _, err := s.db.Exec(ctx, floorSchema); err != nil {
			return fmt.Errorf("create the floors' tables: %w", err)
		}
		var swept, plain []block
		err = b.maintained(ctx, s, nil, func() error {
			for i, part := range parts {
				progress("  round %d of %d: %d segments", i+1, len(parts), part.total())
				got, floor, err := s.sweepRound(ctx, part)
				if err != nil {
					return fmt.Errorf("%s: %w", part.queue, err)
				}
				swept, plain = append(swept, got), append(plain, floor)
			}
			return nil
		})
		if err != nil {
			return err
		}
		out.add("deleted", "segments/s", each(swept, block.pushRate), atLeast(sweepRate))
		out.add("maintainer/plain", "", ratios(swept, plain, block.pushRate), atLeast(sweepRatio))
		out.tell("plain DELETE", "segments/s", each(plain, block.pushRate))
		out.tell("postgres", "µs/segment", each(swept, block.postgresCPU))
		out.tell("plain DELETE postgres", "µs/segment", each(plain, block.postgresCPU))
		out.tell("WAL", "B/segment", each(swept, block.walBytes))
		out.tell("plain DELETE WAL", "B/segment", each(plain, block.walBytes))
		return nil
	})
}

// makeParts writes the whole backlog, a queue for each round.
func (b *bench) makeParts(ctx context.Context, s *stack, out *outcome) ([]bulk, error) {
	var parts []bulk
	for i := range b.scale.Rounds {
		part := staleBulk(fmt.Sprintf("%s-%d", staleQueue, i), b.scale.Stale/b.scale.Rounds)
		if err := s.makeStale(ctx, part); err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	size, err := s.segmentBytes(ctx, parts[0].queue)
	out.tell("size of a segment", "B", []float64{size})
	if err != nil {
		return nil, err
	}
	return parts, s.settle(ctx)
}

// sweepRound has one part of the backlog deleted by either side. The space is
// cleaned up after each, so that no side pays for the other's dead rows.
func (s *stack) sweepRound(ctx context.Context, part bulk) (swept, plain block, err error) {
	ranges, err := s.copyPart(ctx, part)
	if err != nil {
		return swept, plain, err
	}
	swept, err = s.costOf(ctx, part, func() (time.Duration, error) {
		if err := s.configure(ctx, part.queue, staleOn); err != nil {
			return 0, err
		}
		return s.awaitSweep(ctx, part.queue)
	})
	if err != nil {
		return swept, plain, err
	}
	left, err := s.left(ctx, part.queue)
	if err == nil && left > 0 {
		err = fmt.Errorf("%d segments are left in lanes that count as empty", left)
	}
	if err != nil {
		return swept, plain, err
	}
	if err := s.vacuumSegments(ctx); err != nil {
		return swept, plain, err
	}
	plain, err = s.costOf(ctx, part, func() (time.Duration, error) { return s.deletePlainly(ctx, ranges) })
	if err != nil {
		return swept, plain, err
	}
	_, err = s.db.Exec(ctx, "TRUNCATE bench.segments")
	return swept, plain, err
}

// costOf is a block that lasts as long as the deletion of a part.
func (s *stack) costOf(ctx context.Context, part bulk, deletion func() (time.Duration, error)) (block, error) {
	if err := s.checkpoint(ctx); err != nil {
		return block{}, err
	}
	before, err := s.usage(ctx)
	if err != nil {
		return block{}, err
	}
	got := block{pushed: int64(part.total())}
	if got.elapsed, err = deletion(); err != nil {
		return block{}, err
	}
	after, err := s.usage(ctx)
	got.used = after.minus(before)
	return got, err
}

// laneRange is a piece of one lane.
type laneRange struct {
	ID       uuid.UUID
	From, To int64
}

// copyPart copies the segments of a part into the floor's table, and answers in
// what pieces they are to be deleted.
func (s *stack) copyPart(ctx context.Context, part bulk) ([]laneRange, error) {
	const rows = `INSERT INTO bench.segments
		SELECT s.* FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		JOIN queen.log_segments AS s ON s.partition_id = p.id
		WHERE q.name = $1
		ORDER BY s.created_at`
	if _, err := s.db.Exec(ctx, rows, part.queue); err != nil {
		return nil, fmt.Errorf("copy the segments: %w", err)
	}
	if _, err := s.db.Exec(ctx, "VACUUM (ANALYZE) bench.segments"); err != nil {
		return nil, err
	}
	const pieces = `SELECT partition_id, min(base_offset), max(base_offset)
		FROM (
			SELECT partition_id, base_offset,
				(row_number() OVER (PARTITION BY partition_id ORDER BY base_offset) - 1) / $1 AS piece
			FROM bench.segments
		) AS s
		GROUP BY partition_id, piece ORDER BY partition_id, piece`
	found, err := s.db.Query(ctx, pieces, s.lab.scale.Step)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[laneRange])
}

// deletePlainly deletes what the maintainer deletes, on one connection and with
// its commit settings, and does nothing else.
func (s *stack) deletePlainly(ctx context.Context, pieces []laneRange) (time.Duration, error) {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return 0, err
	}
	defer func() { _, _ = conn.Exec(ctx, "RESET synchronous_commit") }()
	began := time.Now()
	for _, p := range pieces {
		const q = `DELETE FROM bench.segments WHERE partition_id = $1 AND base_offset BETWEEN $2 AND $3`
		if _, err := conn.Exec(ctx, q, p.ID, p.From, p.To); err != nil {
			return 0, fmt.Errorf("delete plainly: %w", err)
		}
	}
	return time.Since(began), nil
}
