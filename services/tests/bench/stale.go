package main

import (
	"context"
	"fmt"
	"time"
)

// A backlog that retention has to delete.
const (
	staleQueue    = "stale"
	staleSegments = 1000 // of a lane
	staleMessages = 19   // of a segment, which makes it about 6 kB
	staleAge      = 4 * time.Hour
	staleUntil    = 2 * time.Hour

	// staleOn lets everything of such a backlog go, and nothing that is pushed
	// meanwhile; staleOff keeps all.
	staleOn  = `{"retentionEnabled":true,"retentionSeconds":3600}`
	staleOff = `{"retentionEnabled":false}`

	awaitLook = 50 * time.Millisecond
	patience  = 10 * time.Minute
)

// staleBulk is a backlog of about so many segments in a queue of its own.
func staleBulk(queue string, segments int) bulk {
	perLane := min(staleSegments, segments)
	return bulk{
		queue: queue, lanes: segments / perLane, segments: perLane, messages: staleMessages,
		age: staleAge, until: staleUntil,
	}
}

func (k bulk) total() int { return len(k.names()) * k.lanes * k.segments }

// makeStale writes a backlog that is kept until retention is switched on.
func (s *stack) makeStale(ctx context.Context, k bulk) error {
	progress("  making %d segments in %d lanes of %s", k.total(), k.lanes, k.queue)
	if err := s.configure(ctx, k.queue, staleOff); err != nil {
		return err
	}
	return k.write(ctx, s.db, func() ([]byte, error) { return newPayload(payloadBytes) })
}

// segmentBytes is the size of the stored segments of a queue.
func (s *stack) segmentBytes(ctx context.Context, queue string) (float64, error) {
	const q = `SELECT avg(octet_length(s.blob))::float8
		FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		CROSS JOIN LATERAL (SELECT g.blob FROM queen.log_segments AS g WHERE g.partition_id = p.id LIMIT 8) AS s
		WHERE q.name = $1`
	var size float64
	err := s.db.QueryRow(ctx, q, queue).Scan(&size)
	return size, err
}

// left counts the segments of a queue.
func (s *stack) left(ctx context.Context, queue string) (int, error) {
	const q = `SELECT count(*) FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		JOIN queen.log_segments AS s ON s.partition_id = p.id WHERE q.name = $1`
	var n int
	err := s.db.QueryRow(ctx, q, queue).Scan(&n)
	return n, err
}

// awaitSweep waits until retention has emptied every lane of a queue. The answer
// is the time from the start of its first step to the end of the last one.
func (s *stack) awaitSweep(ctx context.Context, queue string) (time.Duration, error) {
	// The history names no queue: partitions do.
	const q = `SELECT count(*) FILTER (WHERE p.log_start <= p.last_offset),
			clock_timestamp() - min(h.began)
		FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		LEFT JOIN (SELECT partition_id, min(executed_at) AS began FROM queen.retention_history GROUP BY partition_id) AS h
			ON h.partition_id = p.id
		WHERE q.name = $1`
	var lanes int
	var elapsed *time.Duration
	err := s.await(ctx, "the sweep of "+queue, func() (bool, error) {
		err := s.db.QueryRow(ctx, q, queue).Scan(&lanes, &elapsed)
		return lanes == 0 && elapsed != nil, err
	})
	if err != nil {
		return 0, err
	}
	return *elapsed, nil
}

// await asks again and again until something is done.
func (s *stack) await(ctx context.Context, what string, done func() (bool, error)) error {
	deadline := time.Now().Add(patience)
	for {
		switch ok, err := done(); {
		case ok || err != nil:
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("%s: not done after %s", what, patience)
		case !waitUntil(ctx, time.Now().Add(awaitLook)):
			return ctx.Err()
		}
	}
}

// vacuumSegments cleans up after a deletion.
func (s *stack) vacuumSegments(ctx context.Context) error {
	_, err := s.db.Exec(ctx, "VACUUM queen.log_segments")
	return err
}
