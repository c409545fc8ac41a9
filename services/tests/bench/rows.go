package main

import "context"

// rows is the table, in the order in which it runs.
func rows(o options) []row {
	return []row{
		{name: "w2", what: "100 messages per request, 64 lanes, 8 pushers, push only, against floors A and B", run: runW2},
		{name: "w2e", what: "w2 end to end, pops of up to 1000, ack/batch", run: runW2E},
		{name: "w1", what: "one message per request, 64 pushers, 8 lanes, pops of up to 100, ack/batch", run: runW1},
		{name: "w1s", what: "push 1, pop 1, ack 1 on the lanes of w1", run: w1single(w1Lanes)},
		{name: "w1s-64", what: "w1s on 64 lanes", run: w1single(64), extra: true},
		{name: "r", what: "pushes of w1 against a plain INSERT of one row per transaction (floor R)", run: runR},
		{name: "w4", what: "100 messages over 100 of 100,000 lanes per request, random, pops over 64 lanes", run: runW4},
		{name: "rss", what: "resident memory of the broker after w4", run: runResident},
		{name: "idle-lanes", what: "100 active among 100,000 lanes against 100 lanes", run: runIdleLanes},
		{name: "dedup", what: "client ids, a window of 1 h and ten minutes of history against no window; restarts", run: runDedup},
		{name: "three", what: "w1 on three brokers behind round-robin against one", run: runThree},
		{name: "big-segments", what: "pops of 1 from segments of 10,000 messages against segments of 1", run: runBigSegments},
		{name: "hop", what: "push on one broker to delivery at a pop parked on another, idle", run: runHop},
		{name: "parked", what: "memory of 10,000 parked pops", run: runParked},
		{name: "custom", what: "the load that -lanes, -pushers, -batch and so on describe, beside floors A and B", run: runCustom(o.custom), extra: true},
	}
}

// costs adds the figures of most rows that say what a message costs.
func (o *outcome) costs(blocks []block) {
	o.tell("broker", "µs/msg", each(blocks, block.brokerCPU))
	o.tell("postgres", "µs/msg", each(blocks, block.postgresCPU))
	o.tell("driver", "µs/msg", each(blocks, block.driverCPU))
	o.tell("WAL", "B/msg", each(blocks, block.walBytes))
}

// single runs fn on one broker with a database of its own.
func (b *bench) single(ctx context.Context, fn func(s *stack) error) error {
	return b.lab.with(ctx, 1, fn)
}
