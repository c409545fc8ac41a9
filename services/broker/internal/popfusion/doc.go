// Package popfusion lets the pops of one consumer group share transactions, and
// keeps a busy group from claiming its messages in crumbs.
//
// # Flights
//
// A pop of one lane waits at the departure of its (tenant, queue, group). A flight
// takes an admission slot, then all that wait, up to MaxClaims; only now each of
// them names its lane, so that lanes stay ready for others until the slot is there.
// One call claims for all, each its own lane under its own lease:
//
//	waiting --flight--> boarding --no lane left----> NoLane
//	   |                   |-----claimed------------> Served
//	   |                   '-----lane gave nothing--> Missed: ask for it alone
//	   '--client left, MaxWait passed, overloaded---> error, nothing was claimed
//
// The messages of a flight are in memory together, so that its claims share a bound
// on bytes. A group has one flight at a time, so that those who come meanwhile go together
// with the next one. A flight that takes longer than stuckAfter no longer keeps
// others from starting. When a call fails for a reason that may lie in one of the
// lanes, all of them count as missed, so that each goes alone. A group of which
// several flights in a row only miss (its queue holds messages back, which the
// shared claim does not do) is not fused for a second; one that misses now and then
// meets the claims of other brokers, and gains all the more from sharing its own.
//
// # Pace
//
// Departures of a group that delivered less than half of what was asked for keep
// an interval of paceFactor times what such a call takes, at most MaxPace: a call
// costs nearly the same for one message as for fifty, and while the processors are
// busy the messages of a moment later come along. Calls get slow with load, so the
// interval does too; the first departure after a rest, and any while batches are
// half full, is immediate. A pop of several lanes goes alone and keeps the same
// pace.
package popfusion
