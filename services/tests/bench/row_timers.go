package main

import (
	"context"
	"time"
)

const (
	delay0Limit   = 50 // milliseconds
	restedLimit   = 100
	unhintedLimit = 1100

	// unhintedShare is by how much fewer deliveries are measured without hints: each
	// takes a second.
	unhintedShare = 3
	// unhintedParks spreads the schedules over the second between two probes.
	unhintedParks = time.Second
)

// hinted is what most rows run: a broker and a sweeper that give each other hints.
var hinted = crew{brokers: 1, sweepers: 1}

// runDelay0 measures the way of a timer that is due at once: from the start of its
// schedule request to the arrival of its message at a queue-wide pop that has been
// parked for 20 to 40 ms, on the same broker. One timer is under way at a time, each in
// another of 100 lanes; nothing else runs.
func runDelay0(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, hinted, func(s *stack) error {
		h, err := newTimerHopper(ctx, s, delay0Limit*time.Millisecond, hopParks)
		if err != nil {
			return err
		}
		return b.timerHops(ctx, out, h, b.scale.Hops, delay0Limit)
	})
}

// runUnhinted is runDelay0 without a pool of hints: the sweeper finds the timer by its
// own probes, the broker the message by its own looks. Up to a second passes between a
// delivery and the next schedule, so that these meet every phase of the probes.
func runUnhinted(ctx context.Context, b *bench, out *outcome) error {
	alone := hinted
	alone.apart = true
	return b.lab.staff(ctx, alone, func(s *stack) error {
		h, err := newTimerHopper(ctx, s, unhintedLimit*time.Millisecond, unhintedParks)
		if err != nil {
			return err
		}
		return b.timerHops(ctx, out, h, max(b.scale.Hops/unhintedShare, hopsInARow), unhintedLimit)
	})
}

// timerHops measures n deliveries.
func (b *bench) timerHops(ctx context.Context, out *outcome, h *hopper, n int, limit float64) error {
	defer h.close()
	if err := h.settle(ctx, meshLooks*b.scale.Look); err != nil {
		return err
	}
	hops, err := h.hops(ctx, n)
	if err != nil {
		return err
	}
	out.add("schedule to delivery p99", "ms", []float64{millis(hops, 99)}, under(limit))
	out.tell("schedule to delivery p50", "ms", []float64{millis(hops, 50)})
	out.tell("schedule to delivery, longest", "ms", []float64{millis(hops, 100)})
	return nil
}

// runRested is runDelay0 for the first timer after a long rest, of which a sweeper has
// only one. So many installations, on databases of their own, rest at the same time and
// are asked one after another. The target holds for the longest of these deliveries,
// which is stricter than a p99.
func runRested(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.several(ctx, b.scale.Rested, hinted, func(stacks []*stack) error {
		var hoppers []*hopper
		for _, s := range stacks {
			h, err := newTimerHopper(ctx, s, delay0Limit*time.Millisecond, hopParks)
			if err != nil {
				return err
			}
			defer h.close()
			if err := h.settle(ctx, meshLooks*b.scale.Look); err != nil {
				return err
			}
			hoppers = append(hoppers, h)
		}
		progress("  resting for %s", b.scale.Rest)
		if !waitUntil(ctx, time.Now().Add(b.scale.Rest)) {
			return ctx.Err()
		}
		hops := newHistogram()
		for _, h := range hoppers {
			// The broker has closed what was idle for so long.
			h.close()
			d, err := h.hop(ctx)
			if err != nil {
				return err
			}
			_ = hops.RecordValue(max(d.Microseconds(), 1))
		}
		out.add("schedule to delivery, longest", "ms", []float64{millis(hops, 100)}, under(restedLimit))
		out.tell("schedule to delivery p50", "ms", []float64{millis(hops, 50)})
		out.tell("rest before each", "s", []float64{b.scale.Rest.Seconds()})
		out.tell("deliveries", "", []float64{float64(len(hoppers))})
		return nil
	})
}
