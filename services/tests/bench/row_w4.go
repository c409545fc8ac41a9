package main

import "context"

const (
	w4Queue   = "w4"
	w4Batch   = 100
	w4Pushers = 8
	w4Rate    = 4000
	w4PopsOf  = 64 // lanes per pop

	residentLimit = 150 // MB
)

func (b *bench) w4Flow() flow {
	return flow{
		shape:   shape{Queue: w4Queue, Batch: w4Batch, Lanes: b.scale.Lanes, Spread: true, Random: true},
		pushers: w4Pushers, rate: b.rate(w4Rate),
		groups: 1, consumers: 4, popBatch: 1000, popLanes: w4PopsOf,
	}
}

func runW4(ctx context.Context, b *bench, out *outcome) error {
	f := b.w4Flow()
	return b.single(ctx, func(s *stack) error {
		got, err := b.manyLanes(ctx, s, f)
		if err != nil {
			return err
		}
		out.took(got)
		out.add("acknowledged", "msg/s", each(got, block.ackRate), b.atRate(w4Rate))
		out.add("end to end p99", "ms", each(got, block.endP99), under(250))
		out.tell("end to end p50", "ms", each(got, block.endP50))
		out.tell("push p99", "ms", each(got, block.pushP99))
		out.tell("server CPU", "µs/msg", each(got, block.serverCPU))
		out.tell("commits per message", "", each(got, block.commits))
		out.costs(got)
		out.tell("broker resident", "MB", b.afterLanes)
		return b.closedLoop(ctx, s, out, f, 20_000)
	})
}

// manyLanes runs w4 and notes the broker's memory after it.
func (b *bench) manyLanes(ctx context.Context, s *stack, f flow) ([]block, error) {
	if err := s.makeLanes(ctx, f.shape.Queue, f.shape.Lanes); err != nil {
		return nil, err
	}
	got, err := b.endToEnd(ctx, s, f)
	if err != nil {
		return nil, err
	}
	bytes, err := resident(s.brokers[0].proc.PID())
	b.afterLanes = []float64{bytes / 1e6}
	return got, err
}

// runResident uses what w4 has left behind, or runs it.
func runResident(ctx context.Context, b *bench, out *outcome) error {
	if b.afterLanes == nil {
		err := b.single(ctx, func(s *stack) error {
			got, err := b.manyLanes(ctx, s, b.w4Flow())
			out.took(got)
			return err
		})
		if err != nil {
			return err
		}
	}
	out.add("broker resident after w4", "MB", b.afterLanes, atMost(residentLimit))
	return nil
}

const idleActive = 100 // lanes with traffic

// runIdleLanes compares a queue most of whose lanes are idle with one that has
// no more lanes than are active.
func runIdleLanes(ctx context.Context, b *bench, out *outcome) error {
	active := min(idleActive, b.scale.Lanes)
	many := flow{
		shape:   shape{Queue: "many", Batch: 10, Lanes: active, Stride: b.scale.Lanes / active},
		pushers: 16, outstanding: 10_000,
		groups: 1, consumers: 8, popBatch: 100, popLanes: 10,
	}
	few := many
	few.shape.Queue, few.shape.Stride = "few", 1
	return b.single(ctx, func(s *stack) error {
		if err := s.makeLanes(ctx, many.shape.Queue, b.scale.Lanes); err != nil {
			return err
		}
		if err := s.makeLanes(ctx, few.shape.Queue, active); err != nil {
			return err
		}
		got, err := b.compare(ctx, side{"among idle lanes", s, many}, side{"no idle lanes", s, few})
		if err != nil {
			return err
		}
		out.took(got...)
		out.add("throughput, ratio", "", ratios(got[0], got[1], block.ackRate), atLeast(0.9))
		out.add("pop p99, ratio", "", ratios(got[0], got[1], block.popP99), atMost(1.2))
		out.tell("among idle lanes", "msg/s", each(got[0], block.ackRate))
		out.tell("no idle lanes", "msg/s", each(got[1], block.ackRate))
		out.tell("pop p99 among idle lanes", "ms", each(got[0], block.popP99))
		out.tell("pop p99, no idle lanes", "ms", each(got[1], block.popP99))
		out.tell("server CPU among idle lanes", "µs/msg", each(got[0], block.serverCPU))
		out.tell("server CPU, no idle lanes", "µs/msg", each(got[1], block.serverCPU))
		return nil
	})
}

// side is one flow of a comparison of flows.
type side struct {
	name  string
	stack *stack
	flow  flow
}

// compare alternates flows.
func (b *bench) compare(ctx context.Context, sides ...side) ([][]block, error) {
	var contenders []contender
	for _, x := range sides {
		load, err := newWorkload(x.flow.shape)
		if err != nil {
			return nil, err
		}
		contenders = append(contenders, contender{
			x.name, x.stack, func() runner { return x.flow.prepare(x.stack, load) },
		})
	}
	return b.alternate(ctx, contenders...)
}
