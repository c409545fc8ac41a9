package main

import (
	"context"
	"fmt"
)

// The tables, each of which one command runs.
const (
	tableBroker    = "broker"
	tableRetention = "retention"
	tableTimers    = "timers"
	tableKV        = "kv"
	tableAdmin     = "admin"
)

// tables are all of them.
var tables = []string{tableBroker, tableRetention, tableTimers, tableKV, tableAdmin}

// rows are those of the chosen table, in the order in which they run.
func rows(o options) []row {
	switch o.table {
	case tableRetention:
		return retentionRows(o)
	case tableTimers:
		return timersRows(o)
	case tableKV:
		return kvRows()
	case tableAdmin:
		return adminRows(o)
	}
	return brokerRows(o)
}

// services are what the rows of a table start.
func services(table string) []string {
	switch table {
	case tableRetention, tableAdmin:
		return []string{"broker", "maintainer"}
	case tableTimers:
		return []string{"broker", "sweeper"}
	}
	return []string{"broker"}
}

func brokerRows(o options) []row {
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

func retentionRows(o options) []row {
	stale, many, lanes := o.scale.Stale, o.scale.Many, o.scale.Lanes
	return []row{
		{name: "sweep", what: fmt.Sprintf("delete %d segments of 6 kB, against a plain ranged DELETE of the same rows", stale), run: runSweep},
		{name: "beside", what: "pushes of w2 to lanes that such a sweep empties, against the same without it", run: runBeside},
		{name: "evict", what: fmt.Sprintf("eviction of messages while %d segments of another queue can go", stale), run: runEvict},
		{name: "idle", what: fmt.Sprintf("a cycle with nothing due in %d lanes", many), run: runIdle},
		{name: "held", what: fmt.Sprintf("cycles with %d lanes due and held by one abandoned group", many), run: runHeld},
		{name: "stats", what: fmt.Sprintf("refresh of the statistics of %d lanes with 3 groups", lanes), run: runStats},
		{name: "memory", what: "resident memory of the maintainer in the rows before", run: runMemory},
	}
}

func timersRows(o options) []row {
	sc := o.scale
	return []row{
		{name: "delay0", what: "timer without delay, from its schedule to a parked pop, idle", run: runDelay0},
		{name: "rested", what: fmt.Sprintf("the same after %s without any timer, on %d installations", sc.Rest, sc.Rested), run: runRested},
		{name: "unhinted", what: "the same as delay0 with hints switched off", run: runUnhinted},
		{name: "backlog", what: fmt.Sprintf("%d timers due at once over %d lanes, one sweeper", sc.Timers, timerLanes), run: runBacklog},
		{name: "beside", what: "pushes of w2 at half their maximum to lanes into which such a backlog is fired, against the same without it", run: runBesideFire},
		{name: "two", what: "two sweepers on such a backlog against one", run: runTwo},
		{name: "later", what: fmt.Sprintf("cycles while %d timers are for later", sc.Later), run: runLater},
	}
}

func kvRows() []row {
	return []row{
		{name: "kv", what: "get, incr, putIfAbsent 30/60/10 by 32 clients, against the same calls and plain statements by pgbench", run: runKV},
		{name: "kvbatch", what: "calls of 25 such operations against calls of one", run: runKVBatch},
	}
}

func adminRows(o options) []row {
	k := adminBulk(o.scale)
	return []row{
		{name: "routes", what: fmt.Sprintf("management routes and scrapes with %d messages in %d lanes of %d queues%s",
			k.total()*k.messages, k.queues*k.lanes, k.queues, adminShare(o.scale)), run: runAdmin},
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
