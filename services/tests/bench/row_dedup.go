package main

import (
	"context"
	"time"
)

const (
	dedupOn  = "dedup-on"
	dedupOff = "dedup-off"
	// historyAge is how far back the remembered transaction ids reach.
	historyAge     = 10 * time.Minute
	historySegment = 100
	// repeated requests come again and again as duplicates.
	repeated = 10 * w2Lanes
)

// runDedup compares pushes with client ids on a queue with a window of an hour
// and a history with pushes on one without a window. Both have the history, so
// that the tables are the same.
func runDedup(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		if err := b.makeHistory(ctx, s); err != nil {
			return err
		}
		on := flow{shape: w2Shape(), pushers: w2Pushers}
		on.shape.Queue, on.shape.ClientIDs = dedupOn, true
		off := on
		off.shape.Queue = dedupOff
		twice := on
		twice.shape.Repeat = repeated
		first := twice
		first.requests = repeated
		if err := s.runOnce(ctx, first); err != nil {
			return err
		}
		twice.status = duplicateMark
		got, err := b.compare(ctx, side{"window on", s, on}, side{"window off", s, off}, side{"duplicates only", s, twice})
		if err != nil {
			return err
		}
		out.took(got...)
		out.add("on/off", "", ratios(got[0], got[1], block.pushRate), atLeast(0.9))
		out.add("duplicates/off", "", ratios(got[2], got[1], block.pushRate), atLeast(0.5))
		if err := b.restarts(ctx, s, out, on); err != nil {
			return err
		}
		out.tell("on", "msg/s", each(got[0], block.pushRate))
		out.tell("off", "msg/s", each(got[1], block.pushRate))
		out.tell("duplicates", "msg/s", each(got[2], block.pushRate))
		out.tell("push p99, on", "ms", each(got[0], block.pushP99))
		out.tell("push p99, off", "ms", each(got[1], block.pushP99))
		out.tell("push p99, duplicates", "ms", each(got[2], block.pushP99))
		out.tell("server CPU, on", "µs/msg", each(got[0], block.serverCPU))
		out.tell("server CPU, off", "µs/msg", each(got[1], block.serverCPU))
		out.tell("server CPU, duplicates", "µs/msg", each(got[2], block.serverCPU))
		return nil
	})
}

// makeHistory gives both queues ten minutes of transaction ids.
func (b *bench) makeHistory(ctx context.Context, s *stack) error {
	progress("  making %d transaction ids of history", b.scale.History)
	if err := s.configure(ctx, dedupOn, `{"dedupWindowSeconds":3600}`); err != nil {
		return err
	}
	if err := s.configure(ctx, dedupOff, `{"dedupWindowSeconds":0}`); err != nil {
		return err
	}
	for _, queue := range []string{dedupOn, dedupOff} {
		history := bulk{
			queue: queue, lanes: w2Lanes, segments: b.scale.History / w2Lanes / historySegment,
			messages: historySegment, age: historyAge,
		}
		if err := history.write(ctx, s.db, func() ([]byte, error) { return []byte("{}"), nil }); err != nil {
			return err
		}
	}
	return s.settle(ctx)
}

// restarts measures pushes right after a restart, when nothing in memory knows
// the lanes.
func (b *bench) restarts(ctx context.Context, s *stack, out *outcome, f flow) error {
	load, err := newWorkload(f.shape)
	if err != nil {
		return err
	}
	var got []block
	for i := range b.scale.Blocks {
		progress("  block %d of %d: after a restart of the broker", i+1, b.scale.Blocks)
		if err := s.brokers[0].restart(ctx, s.lab); err != nil {
			return err
		}
		after, err := b.window(ctx, s, f.prepare(s, load), 0)
		if err != nil {
			return err
		}
		got = append(got, after)
	}
	out.took(got)
	out.add("push p99 after a restart", "ms", each(got, block.pushP99), under(1000))
	out.tell("longest push after a restart", "ms", each(got, block.pushMax))
	return nil
}
