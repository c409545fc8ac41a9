package main

import (
	"context"
	"time"
)

// threeRate is offered to compare latencies: well below what either side can do.
const threeRate = 3000

// runThree compares three brokers behind a round-robin balancer with one, by W1:
// an acknowledgement goes to another broker than its pop did.
func runThree(ctx context.Context, b *bench, out *outcome) error {
	f := w1Flow()
	f.outstanding = w1Outstanding
	return b.lab.with(ctx, 3, func(three *stack) error {
		return b.single(ctx, func(one *stack) error {
			got, err := b.compare(ctx, side{"three brokers", three, f}, side{"one broker", one, f})
			if err != nil {
				return err
			}
			f.rate, f.outstanding = b.rate(threeRate), 0
			paced, err := b.compare(ctx, side{"three brokers, open loop", three, f}, side{"one broker, open loop", one, f})
			if err != nil {
				return err
			}
			out.took(append(got, paced...)...)
			out.add("throughput, ratio", "", ratios(got[0], got[1], block.ackRate), atLeast(0.9))
			out.add("end to end p99, ratio", "", ratios(paced[0], paced[1], block.endP99), atMost(1.5))
			out.tell("three", "msg/s", each(got[0], block.ackRate))
			out.tell("one", "msg/s", each(got[1], block.ackRate))
			out.tell("end to end p99, three", "ms", each(paced[0], block.endP99))
			out.tell("end to end p99, one", "ms", each(paced[1], block.endP99))
			out.tell("server CPU, three", "µs/msg", each(paced[0], block.serverCPU))
			out.tell("server CPU, one", "µs/msg", each(paced[1], block.serverCPU))
			return nil
		})
	})
}

const (
	hopQueue = "hop"
	hopLimit = 20 // milliseconds
	// hopParks is the largest additional time that a pop waits before its message
	// comes.
	hopParks = 20 * time.Millisecond
)

// runHop measures how soon a message pushed to one broker reaches a pop that is
// parked on another, on idle servers.
func runHop(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.with(ctx, 2, func(s *stack) error {
		h, err := newPushHopper(ctx, s)
		if err != nil {
			return err
		}
		defer h.close()
		if err := h.settle(ctx, meshLooks*b.scale.Look); err != nil {
			return err
		}
		hops, err := h.hops(ctx, b.scale.Hops)
		if err != nil {
			return err
		}
		out.add("push to delivery p99", "ms", []float64{millis(hops, 99)}, under(hopLimit))
		out.tell("push to delivery p50", "ms", []float64{millis(hops, 50)})
		out.tell("push to delivery, longest", "ms", []float64{millis(hops, 100)})
		return nil
	})
}

// newPushHopper pushes messages to the first broker, for pops at the second one.
func newPushHopper(ctx context.Context, s *stack) (*hopper, error) {
	load, err := newWorkload(shape{Queue: hopQueue, Batch: 1, Lanes: 1})
	if err != nil {
		return nil, err
	}
	h := &hopper{
		queue: hopQueue, from: &conn{addr: s.brokers[0].addr}, to: &conn{addr: s.brokers[1].addr},
		limit: hopLimit * time.Millisecond, parks: hopParks, accepted: queuedMark,
		request: func(n int, at time.Time) []byte { return load.fill(nil, n, newRand(n), at) },
	}
	return h, s.register(ctx, hopQueue)
}
