package main

import "context"

const (
	w1Queue       = "w1"
	w1Lanes       = 8
	w1Pushers     = 64
	w1Consumers   = 8
	w1PopBatch    = 100
	w1Rate        = 8000
	w1SingleRate  = 2500
	w1Outstanding = 10_000
	w1P99         = 250 // milliseconds
)

func w1Shape() shape { return shape{Queue: w1Queue, Batch: 1, Lanes: w1Lanes} }

// w1Flow is one message per request, read in batches.
func w1Flow() flow {
	return flow{
		shape: w1Shape(), pushers: w1Pushers,
		groups: 1, consumers: w1Consumers, popBatch: w1PopBatch, popLanes: 1,
	}
}

func runW1(ctx context.Context, b *bench, out *outcome) error {
	f := w1Flow()
	f.rate = b.rate(w1Rate)
	return b.single(ctx, func(s *stack) error {
		got, err := b.endToEnd(ctx, s, f)
		if err != nil {
			return err
		}
		out.took(got)
		out.add("acknowledged", "msg/s", each(got, block.ackRate), b.atRate(w1Rate))
		out.add("end to end p99", "ms", each(got, block.endP99), under(w1P99))
		out.add("server CPU", "µs/msg", each(got, block.serverCPU), atMost(150))
		out.add("commits per message", "", each(got, block.commits), under(0.5))
		out.tell("end to end p50", "ms", each(got, block.endP50))
		out.tell("push p99", "ms", each(got, block.pushP99))
		out.costs(got)
		return b.closedLoop(ctx, s, out, f, w1Outstanding)
	})
}

// w1single takes everything one by one.
func w1single(lanes int) func(context.Context, *bench, *outcome) error {
	return func(ctx context.Context, b *bench, out *outcome) error {
		f := w1Flow()
		f.shape.Lanes, f.consumers, f.popBatch, f.singleAck = lanes, max(2*w1Lanes, lanes), 1, true
		f.rate = b.rate(w1SingleRate)
		return b.single(ctx, func(s *stack) error {
			got, err := b.endToEnd(ctx, s, f)
			if err != nil {
				return err
			}
			out.took(got)
			out.add("acknowledged", "msg/s", each(got, block.ackRate), b.atRate(w1SingleRate))
			out.add("end to end p99", "ms", each(got, block.endP99), under(w1P99))
			out.add("server CPU", "µs/msg", each(got, block.serverCPU), atMost(400))
			out.tell("end to end p50", "ms", each(got, block.endP50))
			out.tell("push p99", "ms", each(got, block.pushP99))
			out.tell("commits per message", "", each(got, block.commits))
			out.costs(got)
			return b.closedLoop(ctx, s, out, f, w1Outstanding)
		})
	}
}

// runR compares pushes of one message with the plainest thing that a service
// without a queue would do.
func runR(ctx context.Context, b *bench, out *outcome) error {
	f := flow{shape: w1Shape(), pushers: w1Pushers}
	return b.single(ctx, func(s *stack) error {
		load, err := newWorkload(f.shape)
		if err != nil {
			return err
		}
		fl, err := newFloors(ctx, load, s.db)
		if err != nil {
			return err
		}
		got, err := b.alternate(ctx,
			contender{"broker", s, func() runner { return f.prepare(s, load) }},
			contender{"floor R, INSERT of one row", s, func() runner { return newFloorRun(w1Pushers, fl.row) }})
		if err != nil {
			return err
		}
		out.took(got...)
		out.add("broker/R", "", ratios(got[0], got[1], block.pushRate), atLeast(1))
		out.tell("pushed", "msg/s", each(got[0], block.pushRate))
		out.tell("floor R", "msg/s", each(got[1], block.pushRate))
		out.tell("push p99", "ms", each(got[0], block.pushP99))
		out.tell("floor R p99", "ms", each(got[1], block.pushP99))
		out.tell("commits per message", "", each(got[0], block.commits))
		out.costs(got[0])
		out.tell("floor R postgres", "µs/msg", each(got[1], block.postgresCPU))
		out.tell("floor R driver", "µs/msg", each(got[1], block.driverCPU))
		return nil
	})
}
