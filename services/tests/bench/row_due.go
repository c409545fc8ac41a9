package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	idleQueue  = "idle"
	idleCycle  = 250 // milliseconds
	idleAge    = 10 * time.Minute
	idleUntil  = 5 * time.Minute
	heldQueue  = "held"
	heldCycle  = 1000 // milliseconds
	heldAge    = 50 * time.Minute
	heldCycles = 2 // from this cycle on the target holds

	// idleOn has every rule look at the lanes, and none find anything.
	idleOn = `{"retentionEnabled":true,"retentionSeconds":86400,"completedRetentionSeconds":43200,"maxWaitTimeSeconds":86400}`
	heldOn = `{"retentionEnabled":true,"completedRetentionSeconds":60}`
)

// runIdle measures cycles that have nothing to do. The first one in a minute walks
// over some lanes to make sure of their watermarks, so it is shown by itself.
func runIdle(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		many := bulk{queue: idleQueue, lanes: b.scale.Many, segments: 1, messages: 1, age: idleAge, until: idleUntil, groups: 1}
		if err := s.makeMany(ctx, many, idleOn); err != nil {
			return err
		}
		walk, walked, err := b.touching(ctx, s)
		if err != nil {
			return err
		}
		var elapsed, touched []float64
		for i := range b.scale.Cycles {
			progress("  cycle %d of %d", i+1, b.scale.Cycles)
			ms, rows, err := b.touching(ctx, s)
			if err != nil {
				return err
			}
			elapsed, touched = append(elapsed, ms), append(touched, rows)
		}
		out.add("cycle", "ms", elapsed, under(idleCycle))
		out.add("segment rows touched, most", "", []float64{slices.Max(touched)}, atMost(0))
		out.tell("cycle with the walk of the minute", "ms", []float64{walk})
		out.tell("segment rows touched by that", "", []float64{walked})
		return nil
	})
}

// makeMany writes lanes with small segments, and the groups that read them.
func (s *stack) makeMany(ctx context.Context, k bulk, options string) error {
	progress("  making %d lanes of %s", k.lanes, k.queue)
	if err := s.configure(ctx, k.queue, options); err != nil {
		return err
	}
	if err := s.registerGroups(ctx, k.queue, k.groups); err != nil {
		return err
	}
	if err := k.write(ctx, s.db, func() ([]byte, error) { return newPayload(payloadBytes) }); err != nil {
		return err
	}
	return s.settle(ctx)
}

// touching runs one cycle and tells how long it took, in milliseconds, and how
// many segment rows it touched.
func (b *bench) touching(ctx context.Context, s *stack) (ms, rows float64, err error) {
	before, err := s.touched(ctx)
	if err != nil {
		return 0, 0, err
	}
	cycle, err := b.runCycle(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	after, err := s.touched(ctx)
	return cycle.ElapsedMs, after - before, err
}

// touched counts the segment rows that anybody has read or changed so far. A
// session counts when it ends, if not before, so the maintainer's have to be over.
func (s *stack) touched(ctx context.Context) (float64, error) {
	if err := s.awaitNoMaintainer(ctx); err != nil {
		return 0, err
	}
	const q = `WITH t AS (
			SELECT oid FROM pg_class WHERE oid = 'queen.log_segments'::regclass
			UNION ALL SELECT reltoastrelid FROM pg_class WHERE oid = 'queen.log_segments'::regclass
		)
		SELECT ((SELECT sum(seq_tup_read + n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_all_tables WHERE relid IN (SELECT oid FROM t))
			+ (SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE relid IN (SELECT oid FROM t)))::float8`
	var n float64
	err := s.db.QueryRow(ctx, q).Scan(&n)
	return n, err
}

func (s *stack) awaitNoMaintainer(ctx context.Context) error {
	const q = `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'queen-maintainer%')`
	return s.await(ctx, "the maintainer's connections", func() (gone bool, err error) {
		err = s.db.QueryRow(ctx, q).Scan(&gone)
		return gone, err
	})
}

// cycleMsg is the message with which the maintainer logs a cycle.
const cycleMsg = "swept"

// cycleLine is what that line tells.
type cycleLine struct {
	ElapsedMs float64 `json:"elapsed_ms"`
}

// runHeld measures cycles while nothing may go because a group that has read
// nothing holds every lane.
func runHeld(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		many := bulk{
			queue: heldQueue, lanes: b.scale.Many, segments: 1, messages: 1, age: heldAge, until: heldAge / 2,
			groups: 2, unread: 1,
		}
		if err := s.makeMany(ctx, many, heldOn); err != nil {
			return err
		}
		var cycles []cycleLine
		err := b.maintained(ctx, s, nil, func() (err error) {
			cycles, err = s.awaitCycles(ctx, heldCycles+b.scale.Cycles)
			return err
		})
		if err != nil {
			return err
		}
		left, err := s.left(ctx, heldQueue)
		if err == nil && left != many.total() {
			err = fmt.Errorf("%d of %d segments are left, though nobody may delete one", left, many.total())
		}
		if err != nil {
			return err
		}
		var ms []float64
		for _, c := range cycles {
			ms = append(ms, c.ElapsedMs)
		}
		out.add("second cycle", "ms", ms[1:2], under(heldCycle))
		out.add("longest of the cycles after it", "ms", []float64{slices.Max(ms[heldCycles:])}, under(heldCycle))
		out.tell("first cycle", "ms", ms[:1])
		return nil
	})
}

// awaitCycles waits until the maintainer has made so many cycles.
func (s *stack) awaitCycles(ctx context.Context, n int) ([]cycleLine, error) {
	var cycles []cycleLine
	err := s.await(ctx, "cycles", func() (_ bool, err error) {
		cycles, err = logLines[cycleLine](s.maintainer, says(cycleMsg))
		return len(cycles) >= n, err
	})
	return cycles, err
}
