package main

import (
	"context"
	"errors"
	"time"
)

const (
	besideQueue = "beside"
	besideRate  = 0.8 // of the throughput without the sweep
	besideP99   = 2   // times the p99 without it
	// besideLook is short against a step, and dear enough not to be shorter.
	besideLook = 10 * time.Millisecond
	// besideRounds bounds the rounds: every one takes its part of the backlog.
	besideRounds = 3
	// besideSpeed is more segments per second than are deleted beside pushes, and
	// besideLead the time that a sweep has before its block.
	besideSpeed = 35_000
	besideLead  = 500 * time.Millisecond
)

// runBeside compares pushes beside a sweep with pushes alone. They go to lanes
// that are swept, too: only there can a push meet a lock of retention.
func runBeside(ctx context.Context, b *bench, out *outcome) error {
	f := flow{shape: w2Shape(), pushers: w2Pushers}
	f.shape.Queue = besideQueue
	return b.single(ctx, func(s *stack) error {
		rounds := min(b.scale.Rounds, besideRounds)
		needed := time.Duration(rounds) * (b.scale.Block + b.scale.Warmup + besideLead)
		if err := s.makeStale(ctx, staleBulk(besideQueue, max(b.scale.Stale, int(needed.Seconds()*besideSpeed)))); err != nil {
			return err
		}
		if err := s.configure(ctx, besideQueue, staleOn); err != nil {
			return err
		}
		if err := s.settle(ctx); err != nil {
			return err
		}
		load, err := newWorkload(f.shape)
		if err != nil {
			return err
		}
		r := &besideRow{bench: b, stack: s, runner: func() runner { return f.prepare(s, load) }}
		for i := range rounds {
			if err := r.round(ctx, i, rounds); err != nil {
				return err
			}
		}
		r.report(out)
		return nil
	})
}

// besideRow is the state of the row.
type besideRow struct {
	bench        *bench
	stack        *stack
	runner       func() runner
	with         []block
	without      []block
	swept        []float64     // segments per second beside the pushes
	step, waited time.Duration // the longest ones
}

// round is a block without a maintainer, and one in which a new one sweeps from
// before its start until after its end. What is deleted is cleaned up at once, so
// that no autovacuum of it slows the pushes of the next round.
func (r *besideRow) round(ctx context.Context, i, n int) error {
	progress("  round %d of %d: without the sweep", i+1, n)
	if err := r.stack.checkpoint(ctx); err != nil {
		return err
	}
	alone, _, err := r.block(ctx)
	if err != nil {
		return err
	}
	progress("  round %d of %d: beside the sweep", i+1, n)
	if err := r.stack.checkpoint(ctx); err != nil {
		return err
	}
	err = r.bench.maintained(ctx, r.stack, nil, func() error {
		if err := r.stack.awaitDeletion(ctx); err != nil {
			return err
		}
		beside, deleted, err := r.block(ctx)
		if err != nil {
			return err
		}
		lanes, err := r.stack.dueLanes(ctx, besideQueue)
		if err == nil && lanes == 0 {
			err = errors.New("the sweep was over before the block was")
		}
		r.without, r.with = append(r.without, alone), append(r.with, beside)
		r.swept = append(r.swept, float64(deleted)/(beside.elapsed+r.bench.scale.Warmup).Seconds())
		return err
	})
	if err != nil {
		return err
	}
	return r.stack.vacuumSegments(ctx)
}

// block measures pushes, watched for locks, and what is deleted meanwhile.
func (r *besideRow) block(ctx context.Context) (got block, deleted int64, err error) {
	before, _, err := r.stack.deletions(ctx)
	if err != nil {
		return got, 0, err
	}
	w := startWatch(ctx, r.stack.db, retentionLock, besideLook, func(v sight) {
		r.step, r.waited = max(r.step, v.transaction), max(r.waited, v.waited)
	})
	got, err = r.bench.window(ctx, r.stack, r.runner(), r.bench.scale.Warmup)
	if werr := w.end(); err == nil {
		err = werr
	}
	if err != nil {
		return got, 0, err
	}
	after, _, err := r.stack.deletions(ctx)
	return got, after - before, err
}

func (r *besideRow) report(out *outcome) {
	out.took(r.with, r.without)
	out.add("throughput beside/alone", "", ratios(r.with, r.without, block.pushRate), atLeast(besideRate))
	out.add("push p99 beside/alone", "", ratios(r.with, r.without, block.pushP99), atMost(besideP99))
	out.add("longest wait of a push/longest step", "", []float64{r.waited.Seconds() / max(r.step, time.Millisecond).Seconds()}, atMost(1))
	out.tell("longest wait of a push for retention", "ms", []float64{r.waited.Seconds() * 1000})
	out.tell("longest step", "ms", []float64{r.step.Seconds() * 1000})
	out.tell("beside the sweep", "msg/s", each(r.with, block.pushRate))
	out.tell("alone", "msg/s", each(r.without, block.pushRate))
	out.tell("push p99 beside", "ms", each(r.with, block.pushP99))
	out.tell("push p99 alone", "ms", each(r.without, block.pushP99))
	out.tell("longest push beside", "ms", each(r.with, block.pushMax))
	out.tell("longest push alone", "ms", each(r.without, block.pushMax))
	out.tell("deleted beside the pushes", "segments/s", r.swept)
}

// deletions are the segments that steps have deleted so far, and how many steps
// there were. Segments of the backlog hold all as many messages.
func (s *stack) deletions(ctx context.Context) (segments, steps int64, err error) {
	const q = `SELECT COALESCE(sum(messages_deleted), 0)::bigint, count(*) FROM queen.retention_history`
	err = s.db.QueryRow(ctx, q).Scan(&segments, &steps)
	return segments / staleMessages, steps, err
}

// dueLanes counts the lanes of a queue whose backlog is still there.
func (s *stack) dueLanes(ctx context.Context, queue string) (int, error) {
	const q = `SELECT count(*) FROM queen.queues AS q JOIN queen.log_partitions AS p ON p.queue_id = q.id
		WHERE q.name = $1 AND p.log_start = 0`
	var n int
	err := s.db.QueryRow(ctx, q, queue).Scan(&n)
	return n, err
}

// awaitDeletion waits for the next step that deletes something.
func (s *stack) awaitDeletion(ctx context.Context) error {
	_, before, err := s.deletions(ctx)
	if err != nil {
		return err
	}
	return s.await(ctx, "the first deletion", func() (bool, error) {
		_, steps, err := s.deletions(ctx)
		return steps > before, err
	})
}
