package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
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
	// hopParks is the least and the largest additional time that a pop waits
	// before its message comes.
	hopParks = 20 * time.Millisecond
	// meshLooks is how long the brokers may take to find each other, which shows
	// in hopsInARow quick deliveries.
	meshLooks  = 10
	hopsInARow = 5
)

// runHop measures how soon a message pushed to one broker reaches a pop that is
// parked on another, on idle servers.
func runHop(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.with(ctx, 2, func(s *stack) error {
		h, err := newHopper(ctx, s)
		if err != nil {
			return err
		}
		defer h.close()
		if err := h.settle(ctx, meshLooks*b.scale.Look); err != nil {
			return err
		}
		hops := newHistogram()
		for range b.scale.Hops {
			d, err := h.hop(ctx)
			if err != nil {
				return err
			}
			_ = hops.RecordValue(max(d.Microseconds(), 1))
		}
		out.add("push to delivery p99", "ms", []float64{millis(hops, 99)}, under(hopLimit))
		out.tell("push to delivery p50", "ms", []float64{millis(hops, 50)})
		out.tell("push to delivery, longest", "ms", []float64{millis(hops, 100)})
		return nil
	})
}

// hopper sends single messages from the first broker to the second.
type hopper struct {
	from, to *conn
	load     *workload
	n        int
}

func newHopper(ctx context.Context, s *stack) (*hopper, error) {
	load, err := newWorkload(shape{Queue: hopQueue, Batch: 1, Lanes: 1})
	if err != nil {
		return nil, err
	}
	h := &hopper{from: &conn{addr: s.brokers[0].addr}, to: &conn{addr: s.brokers[1].addr}, load: load}
	return h, s.register(ctx, hopQueue)
}

func (h *hopper) close() {
	h.from.close()
	h.to.close()
}

// settle waits for the brokers to find each other. If they do not, the figures
// will show it.
func (h *hopper) settle(ctx context.Context, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for quick := 0; quick < hopsInARow && time.Now().Before(deadline); quick++ {
		d, err := h.hop(ctx)
		if err != nil {
			return err
		}
		if d > hopLimit*time.Millisecond {
			quick = -1
		}
	}
	return nil
}

// hop parks a pop, pushes a message, waits for it and acknowledges it.
func (h *hopper) hop(ctx context.Context) (time.Duration, error) {
	h.n++
	pop := popRequest(hopQueue, groupName(0), 1, 1, requestTimeout/2, "")
	if err := h.to.send(ctx, pop); err != nil {
		return 0, err
	}
	rng := newRand(h.n)
	if !waitUntil(ctx, time.Now().Add(hopParks+time.Duration(rng.Int64N(int64(hopParks))))) {
		return 0, ctx.Err()
	}
	began := time.Now()
	push := h.load.fill(nil, h.n, rng, began)
	a, err := h.from.do(ctx, push)
	if err == nil && bytes.Count(a.body, queuedMark) != 1 {
		err = unexpected(push, a)
	}
	if err != nil {
		return 0, err
	}
	if a, err = h.to.receive(); err != nil {
		return 0, err
	}
	d := time.Since(began)
	messages, err := scanPop(nil, a.body)
	if err == nil && len(messages) != 1 {
		err = unexpected(pop, a)
	}
	if err != nil {
		return 0, err
	}
	return d, h.ack(ctx, messages[0])
}

func (h *hopper) ack(ctx context.Context, m message) error {
	request := newRequest(http.MethodPost, "/api/v1/ack", string(appendAck(nil, groupName(0), m)))
	a, err := h.to.do(ctx, request)
	if err == nil && !bytes.Contains(a.body, succeededMark) {
		err = fmt.Errorf("ack: %w", unexpected(request, a))
	}
	return err
}
