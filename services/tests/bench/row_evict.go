package main

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

const (
	evictQueue = "evict"
	evictLook  = 20 * time.Millisecond
	evictPace  = 500 * time.Millisecond // between two messages
	// evictSlack is how much later than due a message may go: the target of 15
	// seconds for a wait of 10.
	evictSlack = 5 * time.Second
	// evictLead is how long before the first message is due the maintainer starts,
	// and with it the sweep of the backlog.
	evictLead     = 500 * time.Millisecond
	evictPatience = 2 * time.Minute
)

// runEvict measures how long messages live that may wait for a few seconds only,
// while the maintainer has a large backlog of another queue to delete.
func runEvict(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		if err := s.makeStale(ctx, staleBulk(staleQueue, b.scale.Stale)); err != nil {
			return err
		}
		options := fmt.Sprintf(`{"maxWaitTimeSeconds":%d}`, int(b.scale.MaxWait.Seconds()))
		if err := s.configure(ctx, evictQueue, options); err != nil {
			return err
		}
		if err := s.configure(ctx, staleQueue, staleOn); err != nil {
			return err
		}
		if err := s.settle(ctx); err != nil {
			return err
		}
		e, err := newEvictions(b.scale, s.brokers[0].addr)
		if err != nil {
			return err
		}
		defer e.conn.close()
		if err := e.run(ctx, s, b.scale.MaxWait-evictLead); err != nil {
			return err
		}
		err = b.maintained(ctx, s, nil, func() error { return e.run(ctx, s, evictPatience) })
		if err != nil {
			return err
		}
		if !e.over() {
			return fmt.Errorf("%d of %d messages were not evicted within %s", len(e.pushed), e.total, evictPatience)
		}
		if e.leftLast, err = s.dueLanes(ctx, staleQueue); err != nil {
			return err
		}
		limit := (b.scale.MaxWait + evictSlack).Seconds()
		out.add("push to eviction, longest", "s", []float64{e.longest.Seconds()}, atMost(limit))
		out.tell("push to eviction, shortest", "s", []float64{e.shortest.Seconds()})
		out.tell("backlog at the first eviction", "lanes", []float64{float64(e.leftFirst)})
		out.tell("backlog after the last one", "lanes", []float64{float64(e.leftLast)})
		return nil
	})
}

// evictions pushes messages, each to a lane of its own, and sees them go.
type evictions struct {
	conn   *conn
	load   *workload
	total  int
	began  time.Time
	sent   int
	pushed map[string]time.Time // by lane, while it is there

	longest, shortest   time.Duration
	leftFirst, leftLast int // lanes of the backlog
}

func newEvictions(sc scale, addr string) (*evictions, error) {
	load, err := newWorkload(shape{Queue: evictQueue, Batch: 1, Lanes: sc.Waiting})
	return &evictions{
		conn: &conn{addr: addr}, load: load, total: sc.Waiting, began: time.Now(), pushed: map[string]time.Time{},
	}, err
}

// run pushes and looks until the last message is gone, or until so long after the
// beginning.
func (e *evictions) run(ctx context.Context, s *stack, until time.Duration) error {
	for time.Since(e.began) < until {
		next := time.Now().Add(evictLook)
		if e.sent < e.total && time.Since(e.began) >= time.Duration(e.sent)*evictPace {
			if err := e.push(ctx); err != nil {
				return err
			}
		}
		if err := e.look(ctx, s); err != nil {
			return err
		}
		if e.over() || !waitUntil(ctx, next) {
			break
		}
	}
	return ctx.Err()
}

// over says that every message was pushed and is gone.
func (e *evictions) over() bool { return e.sent == e.total && len(e.pushed) == 0 }

func (e *evictions) push(ctx context.Context) error {
	request := e.load.fill(nil, e.sent, newRand(e.sent), time.Now())
	a, err := e.conn.do(ctx, request)
	if err == nil && bytes.Count(a.body, queuedMark) != 1 {
		err = unexpected(request, a)
	}
	e.pushed[laneName(e.sent)] = time.Now()
	e.sent++
	return err
}

// look finds the lanes whose message is gone.
func (e *evictions) look(ctx context.Context, s *stack) error {
	const q = `SELECT COALESCE(array_agg(p.name), '{}') FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		WHERE q.name = $1 AND p.log_start > p.last_offset AND p.last_offset >= 0`
	var gone []string
	if err := s.db.QueryRow(ctx, q, evictQueue).Scan(&gone); err != nil {
		return err
	}
	now := time.Now()
	for _, lane := range gone {
		at, waiting := e.pushed[lane]
		if !waiting {
			continue
		}
		if e.longest == 0 {
			e.shortest = now.Sub(at)
			var err error
			if e.leftFirst, err = s.dueLanes(ctx, staleQueue); err != nil {
				return err
			}
		}
		e.longest, e.shortest = max(e.longest, now.Sub(at)), min(e.shortest, now.Sub(at))
		delete(e.pushed, lane)
	}
	return nil
}
