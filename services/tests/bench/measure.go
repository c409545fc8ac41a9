package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// runner is a load that can be measured: a flow on brokers, or a floor.
type runner interface {
	// run works until stop is closed, ctx ends or it has nothing left to do.
	run(ctx context.Context, stop <-chan struct{}, w *window)
	// counts are the messages pushed and acknowledged so far.
	counts() (pushed, acked int64)
	// report adds latencies and failures to the block, after run.
	report(b *block)
}

// block is one measured stretch of load.
type block struct {
	elapsed       time.Duration
	pushed, acked int64
	push          *hdrhistogram.Histogram // from due time to answer, microseconds
	end           *hdrhistogram.Histogram // from due time to arrival at a consumer
	pop           *hdrhistogram.Histogram // pops that delivered
	used          usage
	failures      int64
	err           error
}

func (b block) pushRate() float64 { return float64(b.pushed) / b.elapsed.Seconds() }
func (b block) ackRate() float64  { return float64(b.acked) / b.elapsed.Seconds() }
func (b block) pushP99() float64  { return millis(b.push, 99) }
func (b block) pushMax() float64  { return millis(b.push, 100) }
func (b block) endP50() float64   { return millis(b.end, 50) }
func (b block) endP99() float64   { return millis(b.end, 99) }
func (b block) popP99() float64   { return millis(b.pop, 99) }

// messages is what the block's costs are shared by: those that went all the
// way, or those pushed where nobody consumes.
func (b block) messages() float64 {
	if b.acked > 0 {
		return float64(b.acked)
	}
	return float64(max(b.pushed, 1))
}

func (b block) serverCPU() float64   { return b.brokerCPU() + b.postgresCPU() }
func (b block) brokerCPU() float64   { return b.used.brokerCPU * 1e6 / b.messages() }
func (b block) sweeperCPU() float64  { return b.used.sweeperCPU * 1e6 / b.messages() }
func (b block) postgresCPU() float64 { return b.used.postgresCPU * 1e6 / b.messages() }
func (b block) driverCPU() float64   { return b.used.driverCPU * 1e6 / b.messages() }
func (b block) walBytes() float64    { return b.used.walBytes / b.messages() }
func (b block) commits() float64     { return b.used.commits / b.messages() }

// millis is NaN where nothing was measured.
func millis(h *hdrhistogram.Histogram, q float64) float64 {
	if h == nil || h.TotalCount() == 0 {
		return math.NaN()
	}
	return float64(h.ValueAtQuantile(q)) / 1000
}

// contender is one side of a comparison. Its load is made anew for each block.
type contender struct {
	name  string
	stack *stack
	make  func() runner
}

// alternate measures the contenders in turn, in rounds: what the machine does
// beside them hits all alike. The result has the blocks of each contender.
func (b *bench) alternate(ctx context.Context, contenders ...contender) ([][]block, error) {
	blocks := make([][]block, len(contenders))
	for round := range b.scale.Rounds {
		for i, c := range contenders {
			progress("  round %d of %d: %s", round+1, b.scale.Rounds, c.name)
			got, err := b.measure(ctx, c.stack, c.make())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			blocks[i] = append(blocks[i], got)
		}
	}
	return blocks, nil
}

// repeat measures one load in several blocks.
func (b *bench) repeat(ctx context.Context, c contender) ([]block, error) {
	var blocks []block
	for i := range b.scale.Blocks {
		progress("  block %d of %d: %s", i+1, b.scale.Blocks, c.name)
		got, err := b.measure(ctx, c.stack, c.make())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		blocks = append(blocks, got)
	}
	return blocks, nil
}

// measure runs a load and measures one block of it, after a warm-up. A
// checkpoint comes first, so that no load pays for another one's dirty pages.
func (b *bench) measure(ctx context.Context, s *stack, r runner) (block, error) {
	if err := s.checkpoint(ctx); err != nil {
		return block{}, err
	}
	return b.window(ctx, s, r, b.scale.Warmup)
}

// window measures one block of a load that starts now.
func (b *bench) window(ctx context.Context, s *stack, r runner, warmup time.Duration) (block, error) {
	stop, done, w := make(chan struct{}), make(chan struct{}), newWindow()
	go func() {
		defer close(done)
		r.run(ctx, stop, w)
	}()
	got, err := b.between(ctx, s, r, w, warmup, done)
	close(stop)
	<-done
	if err == nil {
		err = ctx.Err()
	}
	r.report(&got)
	if err == nil && got.pushed == 0 && got.acked == 0 && got.err != nil {
		err = fmt.Errorf("nothing succeeded, %d failed: %w", got.failures, got.err)
	}
	return got, err
}

// between reads the counters at both ends of the block.
func (b *bench) between(ctx context.Context, s *stack, r runner, w *window, warmup time.Duration, done <-chan struct{}) (block, error) {
	wait(ctx, warmup, done)
	before, err := s.usage(ctx)
	if err != nil {
		return block{}, err
	}
	began := time.Now()
	pushed, acked := r.counts()
	w.open(began)
	wait(ctx, b.scale.Block, done)
	ended := time.Now()
	w.close(ended)
	var got block
	got.elapsed = ended.Sub(began)
	got.pushed, got.acked = r.counts()
	got.pushed, got.acked = got.pushed-pushed, got.acked-acked
	after, err := s.usage(ctx)
	got.used = after.minus(before)
	return got, err
}

// wait ends early when the load has nothing left to do.
func wait(ctx context.Context, d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	case <-ctx.Done():
	}
}
