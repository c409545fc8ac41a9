package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	backlogQueue = "backlog"
	backlogRate  = 10_000 // timers per second
	// twoRatio is of the rate of one sweeper, twoProbes per second in each.
	twoRatio  = 1
	twoProbes = 20
	// backlogRounds bounds the rounds, each of which makes backlogs.
	backlogRounds = 3
)

// runBacklog measures how fast one sweeper fires timers that are due at the same
// instant, with its usual settings and nothing else to do: their number over the time
// from that instant to the time stamp of the last message. The queue and its lanes come
// to be by the fire. The log is read afterwards: every timer must have one message.
func runBacklog(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, hinted, func(s *stack) error {
		var got []block
		for i := range b.scale.Blocks {
			progress("  block %d of %d", i+1, b.scale.Blocks)
			e, err := s.empty(ctx, fmt.Sprintf("%s-%d", backlogQueue, i), b.scale.Timers)
			if err != nil {
				return err
			}
			got = append(got, e.block)
		}
		out.took(got)
		out.add("fired", "timers/s", each(got, block.pushRate), atLeast(backlogRate/float64(b.scale.Slower)))
		out.tell("sweeper", "µs/timer", each(got, block.sweeperCPU))
		out.tell("postgres", "µs/timer", each(got, block.postgresCPU))
		out.tell("WAL", "B/timer", each(got, block.walBytes))
		return nil
	})
}

// runTwo has backlogs fired by one sweeper and by two, in turn. Both are watched until
// the last timer is fired: how often each probes, of which a spin would be many, and how
// many timers had changed hands when they were to be fired. Every timer must have one
// message.
func runTwo(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, crew{brokers: 1, sweepers: 2}, func(s *stack) error {
		r := &twoRow{stack: s, timers: b.scale.Timers}
		rounds := min(b.scale.Rounds, backlogRounds)
		for i := range rounds {
			progress("  round %d of %d: one sweeper", i+1, rounds)
			if err := s.sweepers[1].proc.Stop(); err != nil {
				return fmt.Errorf("stop a sweeper: %w", err)
			}
			if err := r.round(ctx, fmt.Sprintf("one-%d", i), &r.one); err != nil {
				return err
			}
			progress("  round %d of %d: two sweepers", i+1, rounds)
			if err := s.sweepers[1].start(ctx, s.lab); err != nil {
				return err
			}
			if err := r.round(ctx, fmt.Sprintf("two-%d", i), &r.two); err != nil {
				return err
			}
		}
		return r.report(out)
	})
}

// twoRow is the state of the row.
type twoRow struct {
	stack    *stack
	timers   int
	one, two []emptied
}

func (r *twoRow) round(ctx context.Context, queue string, to *[]emptied) error {
	e, err := r.stack.empty(ctx, queue, r.timers)
	*to = append(*to, e)
	return err
}

func (r *twoRow) report(out *outcome) error {
	one, two := blocksOf(r.one), blocksOf(r.two)
	out.took(one, two)
	probes, err := rates(r.two, seriesProbes)
	if err != nil {
		return err
	}
	alone, err := rates(r.one, seriesProbes)
	if err != nil {
		return err
	}
	out.add("two sweepers/one", "", ratios(two, one, block.pushRate), atLeast(twoRatio))
	out.add("probes of each of two, most", "/s", []float64{slices.Max(probes)}, under(twoProbes))
	out.tell("probes of one", "/s", alone)
	for _, t := range []struct{ figure, series string }{{"claims without a timer", seriesEmpty}, {"timers that had changed hands", seriesStale}} {
		var all []float64
		for _, e := range r.two {
			n, err := e.each(t.series)
			if err != nil {
				return err
			}
			all = append(all, sum(n))
		}
		out.tell(t.figure, "", all)
	}
	out.tell("two", "timers/s", each(two, block.pushRate))
	out.tell("one", "timers/s", each(one, block.pushRate))
	out.tell("postgres, two", "µs/timer", each(two, block.postgresCPU))
	out.tell("postgres, one", "µs/timer", each(one, block.postgresCPU))
	return nil
}

func blocksOf(all []emptied) []block {
	var blocks []block
	for _, e := range all {
		blocks = append(blocks, e.block)
	}
	return blocks
}

// rates are those of a series in every sweeper that took part, per second.
func rates(all []emptied, name string) ([]float64, error) {
	var rates []float64
	for _, e := range all {
		counts, err := e.each(name)
		if err != nil {
			return nil, err
		}
		for _, n := range counts {
			rates = append(rates, n/e.watched.Seconds())
		}
	}
	return rates, nil
}

const (
	fireQueue = "beside"
	fireRate  = 0.9 // of the throughput without the fires
	fireP99   = 2   // times the p99 without them
	fireShare = 0.5 // of what pushes reach in a closed loop
	// firePushers are enough for the offered load also while answers are slow.
	firePushers = 4 * w2Pushers
)

// runBesideFire compares pushes of w2 while a backlog is fired with the same pushes
// alone. Half of what 8 pushers reach in a closed loop is offered. The fires go to the
// lanes of the pushes, and to others: only there can a push meet a lock of a fire. A
// block beside the fires ends with the last of them, if it is not over before.
func runBesideFire(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, hinted, func(s *stack) error {
		f := flow{shape: w2Shape(), pushers: w2Pushers}
		f.shape.Queue = fireQueue
		load, err := newWorkload(f.shape)
		if err != nil {
			return err
		}
		progress("  the most that can be pushed")
		most, err := b.measure(ctx, s, f.prepare(s, load))
		if err != nil {
			return err
		}
		f.rate, f.pushers = fireShare*most.pushRate(), firePushers
		r := &besideFireRow{bench: b, stack: s, runner: func() runner { return f.prepare(s, load) }}
		rounds := min(b.scale.Rounds, backlogRounds)
		for i := range rounds {
			if err := r.round(ctx, i, rounds); err != nil {
				return err
			}
		}
		out.took([]block{most})
		r.report(out)
		out.tell("most that can be pushed", "msg/s", []float64{most.pushRate()})
		return nil
	})
}

// besideFireRow is the state of the row.
type besideFireRow struct {
	bench         *bench
	stack         *stack
	runner        func() runner
	with, without []block
	fired         []float64 // timers per second beside the pushes
}

func (r *besideFireRow) round(ctx context.Context, i, n int) error {
	progress("  round %d of %d: without fires", i+1, n)
	alone, err := r.bench.measure(ctx, r.stack, r.runner())
	if err != nil {
		return err
	}
	progress("  round %d of %d: beside fires", i+1, n)
	beside, fired, err := r.beside(ctx)
	if err != nil {
		return err
	}
	r.without, r.with, r.fired = append(r.without, alone), append(r.with, beside), append(r.fired, fired)
	return nil
}

// beside measures a block that begins when a backlog is due.
func (r *besideFireRow) beside(ctx context.Context) (got block, fired float64, err error) {
	timers, warmup := r.bench.scale.Timers, r.bench.scale.Warmup
	due, err := r.stack.makeBacklog(ctx, fireQueue, timers)
	if err != nil {
		return got, 0, err
	}
	before, err := r.stack.sweeperMetrics(ctx)
	if err != nil {
		return got, 0, err
	}
	waitUntil(ctx, due.Add(-warmup))
	over, done := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(over)
		done <- r.stack.awaitFired(ctx, before, timers)
	}()
	got, err = r.bench.window(ctx, r.stack, until{r.runner(), over}, warmup)
	if ferr := <-done; err == nil {
		err = ferr
	}
	return got, float64(timers) / time.Since(due).Seconds(), err
}

func (r *besideFireRow) report(out *outcome) {
	out.took(r.with, r.without)
	out.add("throughput beside/alone", "", ratios(r.with, r.without, block.pushRate), atLeast(fireRate))
	out.add("push p99 beside/alone", "", ratios(r.with, r.without, block.pushP99), atMost(fireP99))
	out.tell("beside the fires", "msg/s", each(r.with, block.pushRate))
	out.tell("alone", "msg/s", each(r.without, block.pushRate))
	out.tell("push p99 beside", "ms", each(r.with, block.pushP99))
	out.tell("push p99 alone", "ms", each(r.without, block.pushP99))
	out.tell("longest push beside", "ms", each(r.with, block.pushMax))
	out.tell("longest push alone", "ms", each(r.without, block.pushMax))
	out.tell("fired beside the pushes", "timers/s", r.fired)
	out.tell("block beside the fires", "s", each(r.with, func(b block) float64 { return b.elapsed.Seconds() }))
}

// until is a load that ends also when something else is over.
type until struct {
	runner
	over <-chan struct{}
}

func (u until) run(ctx context.Context, stop <-chan struct{}, w *window) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-stop:
		case <-u.over:
		case <-ctx.Done():
		}
	}()
	u.runner.run(ctx, ended, w)
}
