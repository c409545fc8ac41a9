package main

import (
	"context"
	"fmt"
	"time"
)

// block is one measured stretch of load of one kind.
type block struct {
	push      result
	delivered int64
	endToEnd  *delivery
	usage     usage
}

// measure runs the rounds: broker, floor A, floor B, in turn on one server.
func measure(ctx context.Context, o options, s *servers, w *workload) (*report, error) {
	floors, err := newFloorLoad(ctx, w, s.db)
	if err != nil {
		return nil, err
	}
	broker := newBrokerLoad(w, s.url)
	r := newReport(o)
	for round := range o.Rounds {
		for _, kind := range r.kinds() {
			progress("round %d of %d: %s, %s", round+1, o.Rounds, kind, o.Duration)
			var b block
			var err error
			switch kind {
			case kindBroker:
				b, err = measureBroker(ctx, o, s, broker)
			case kindA:
				b, err = measureFloor(ctx, o, s, floors.plain)
			case kindB:
				b, err = measureFloor(ctx, o, s, floors.log)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			r.add(kind, b)
		}
	}
	return r, nil
}

// measured warms up, then runs one block between two readings of the counters.
// A checkpoint comes first, so that no kind pays for another one's dirty pages.
func measured(ctx context.Context, o options, s *servers, send sender) (block, error) {
	if _, err := s.db.Exec(ctx, "CHECKPOINT"); err != nil {
		return block{}, err
	}
	if o.Warmup > 0 {
		drive(ctx, o, o.Warmup, send)
	}
	before, err := s.usage(ctx)
	if err != nil {
		return block{}, err
	}
	push := drive(ctx, o, o.Duration, send)
	after, err := s.usage(ctx)
	if err != nil {
		return block{}, err
	}
	if ctx.Err() != nil {
		return block{}, ctx.Err()
	}
	if push.requests == 0 {
		return block{}, fmt.Errorf("no request succeeded, %d failed", push.failures)
	}
	return block{push: push, usage: after.minus(before)}, nil
}

func measureFloor(ctx context.Context, o options, s *servers, send sender) (block, error) {
	return measured(ctx, o, s, send)
}

// measureBroker adds the consumers, if any, and what they saw in the block.
func measureBroker(ctx context.Context, o options, s *servers, l *brokerLoad) (block, error) {
	if o.Groups == 0 {
		return measured(ctx, o, s, l.push)
	}
	d := &delivery{latency: newHistogram()}
	consuming, stop := context.WithCancel(ctx)
	wg := l.consume(consuming, d)
	b, err := measured(ctx, o, s, l.push)
	b.delivered = d.messages.Load()
	waitDrained(ctx, d)
	stop()
	wg.Wait()
	b.endToEnd = d
	if n := d.failures.Load(); n > 0 && err == nil {
		progress("%d consumer requests failed, the last one: %v", n, d.lastErr)
	}
	return b, err
}

// waitDrained lets the consumers finish what was pushed, for a bounded time, so
// that one block's backlog is not the next one's latency.
func waitDrained(ctx context.Context, d *delivery) {
	const quiet, limit = 2 * time.Second, 30 * time.Second
	deadline := time.Now().Add(limit)
	seen, since := d.messages.Load(), time.Now()
	for time.Now().Before(deadline) && time.Since(since) < quiet {
		if !waitUntil(ctx, time.Now().Add(quiet/10)) {
			return
		}
		if n := d.messages.Load(); n != seen {
			seen, since = n, time.Now()
		}
	}
}
