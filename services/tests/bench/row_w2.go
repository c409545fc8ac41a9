package main

import "context"

const (
	w2Queue   = "w2"
	w2Lanes   = 64
	w2Batch   = 100
	w2Pushers = 8
	w2Rate    = 40_000 // messages per second, end to end
)

func w2Shape() shape { return shape{Queue: w2Queue, Batch: w2Batch, Lanes: w2Lanes} }

func runW2(ctx context.Context, b *bench, out *outcome) error {
	return b.single(ctx, func(s *stack) error {
		return b.againstFloors(ctx, s, out, flow{shape: w2Shape(), pushers: w2Pushers}, atLeast(0.5))
	})
}

// againstFloors compares a flow with floors A and B at the same concurrency.
func (b *bench) againstFloors(ctx context.Context, s *stack, out *outcome, f flow, overB want) error {
	load, err := newWorkload(f.shape)
	if err != nil {
		return err
	}
	fl, err := newFloors(ctx, load, s.db)
	if err != nil {
		return err
	}
	floor := func(send sender) func() runner {
		return func() runner { return newFloorRun(f.pushers, send) }
	}
	got, err := b.alternate(ctx,
		contender{"broker", s, func() runner { return f.prepare(s, load) }},
		contender{"floor A, INSERT of the segment", s, floor(fl.plain)},
		contender{"floor B, the log's three writes", s, floor(fl.log)})
	if err != nil {
		return err
	}
	out.took(got...)
	out.add("broker/B", "", ratios(got[0], got[2], block.pushRate), overB)
	out.tell("broker/A", "", ratios(got[0], got[1], block.pushRate))
	out.tell("pushed", "msg/s", each(got[0], block.pushRate))
	out.tell("floor A", "msg/s", each(got[1], block.pushRate))
	out.tell("floor B", "msg/s", each(got[2], block.pushRate))
	out.tell("push p99", "ms", each(got[0], block.pushP99))
	out.tell("floor B p99", "ms", each(got[2], block.pushP99))
	out.costs(got[0])
	out.tell("floor B postgres", "µs/msg", each(got[2], block.postgresCPU))
	out.tell("floor B WAL", "B/msg", each(got[2], block.walBytes))
	if f.groups > 0 {
		out.tell("acknowledged", "msg/s", each(got[0], block.ackRate))
		out.tell("end to end p50", "ms", each(got[0], block.endP50))
		out.tell("end to end p99", "ms", each(got[0], block.endP99))
	}
	return nil
}

func runW2E(ctx context.Context, b *bench, out *outcome) error {
	f := flow{
		shape: w2Shape(), pushers: w2Pushers, rate: b.rate(w2Rate),
		groups: 1, consumers: 4, popBatch: 1000, popLanes: 16,
	}
	return b.single(ctx, func(s *stack) error {
		got, err := b.endToEnd(ctx, s, f)
		if err != nil {
			return err
		}
		out.took(got)
		out.add("acknowledged", "msg/s", each(got, block.ackRate), b.atRate(w2Rate))
		out.add("end to end p99", "ms", each(got, block.endP99), under(100))
		out.add("server CPU", "µs/msg", each(got, block.serverCPU), atMost(15))
		out.tell("end to end p50", "ms", each(got, block.endP50))
		out.tell("push p99", "ms", each(got, block.pushP99))
		out.tell("commits per message", "", each(got, block.commits))
		out.costs(got)
		return b.closedLoop(ctx, s, out, f, 50_000)
	})
}

// endToEnd measures a flow in several blocks.
func (b *bench) endToEnd(ctx context.Context, s *stack, f flow) ([]block, error) {
	load, err := newWorkload(f.shape)
	if err != nil {
		return nil, err
	}
	return b.repeat(ctx, contender{f.shape.Queue, s, func() runner { return f.prepare(s, load) }})
}

// closedLoop adds what the flow reaches when nothing but the bound on
// unacknowledged messages holds it back.
func (b *bench) closedLoop(ctx context.Context, s *stack, out *outcome, f flow, outstanding int64) error {
	progress("  closed loop")
	f.rate, f.outstanding = 0, outstanding
	load, err := newWorkload(f.shape)
	if err != nil {
		return err
	}
	got, err := b.measure(ctx, s, f.prepare(s, load))
	if err != nil {
		return err
	}
	out.took([]block{got})
	out.tell("closed loop", "msg/s", []float64{got.ackRate()})
	out.tell("closed loop server CPU", "µs/msg", []float64{got.serverCPU()})
	return nil
}

// runCustom is the load that the command line describes.
func runCustom(c custom) func(context.Context, *bench, *outcome) error {
	f := flow{
		shape:   shape{Queue: "custom", Batch: c.Batch, Bytes: c.Bytes, Lanes: c.Lanes, ClientIDs: c.ClientIDs},
		pushers: c.Pushers, rate: float64(c.Rate),
		groups: c.Groups, consumers: c.Consumers, popBatch: c.PopBatch, popLanes: c.PopLanes,
	}
	return func(ctx context.Context, b *bench, out *outcome) error {
		return b.single(ctx, func(s *stack) error { return b.againstFloors(ctx, s, out, f, want{}) })
	}
}
