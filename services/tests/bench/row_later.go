package main

import (
	"context"
	"time"
)

const (
	laterQueue  = "later"
	laterCycle  = 20 // milliseconds
	laterMemory = 40 // MB
	laterAhead  = 24 * time.Hour
	laterStep   = 100 * time.Millisecond
	// laterEvery has more cycles made than the usual one in a second.
	laterEvery = "QUEEN_SWEEPER_MAX_SLEEP_MS=100"
)

// runLater measures cycles of a sweeper that has nothing to do, while very many timers
// are scheduled for the days to come: a probe and what it starts beside. The sweeper is
// a new one, so that the usage of tenants is measured once in this time, and its most
// memory is that of its whole life.
func runLater(ctx context.Context, b *bench, out *outcome) error {
	return b.lab.staff(ctx, crew{brokers: 1}, func(s *stack) error {
		err := s.makeTimers(ctx, timerBulk{queue: laterQueue, timers: b.scale.Later, at: time.Now().Add(laterAhead), step: laterStep})
		if err != nil {
			return err
		}
		v, err := s.newSweeper(ctx, 0, []string{laterEvery})
		if err != nil {
			return err
		}
		s.sweepers = append(s.sweepers, v)
		if err := v.start(ctx, s.lab); err != nil {
			return err
		}
		var cycles laterCycles
		for i := range b.scale.Blocks {
			progress("  block %d of %d", i+1, b.scale.Blocks)
			if err := cycles.watch(ctx, v, b.scale.Block); err != nil {
				return err
			}
		}
		peak, err := peakMemory(v.proc.PID())
		if err != nil {
			return err
		}
		out.add("cycle, mean", "ms", cycles.mean, under(laterCycle))
		out.tell("cycles under 20 ms, share", "", cycles.quick)
		out.add("sweeper resident, most", "MB", []float64{peak / 1e6}, under(laterMemory))
		out.add("sweeper resident, most", "MB", []float64{peak / 1e6}, under(laterMemory))
		out.tell("cycles", "/s", cycles.rate)
		return nil
	})
}

// laterCycles are the cycles of some blocks.
type laterCycles struct{ mean, quick, rate []float64 }

// watch adds a block.
func (c *laterCycles) watch(ctx context.Context, v *service, length time.Duration) error {
	before, err := v.metrics(ctx)
	if err != nil {
		return err
	}
	if !waitUntil(ctx, time.Now().Add(length)) {
		return ctx.Err()
	}
	after, err := v.metrics(ctx)
	if err != nil {
		return err
	}
	var grown [3]float64
	for i, name := range []string{seriesCycles, seriesCycleTime, seriesCycleQuick} {
		if grown[i], err = after.since(before, name); err != nil {
			return err
		}
	}
	c.mean = append(c.mean, grown[1]/grown[0]*1000)
	c.quick = append(c.quick, grown[2]/grown[0])
	c.rate = append(c.rate, grown[0]/length.Seconds())
	return nil
}
