// Package timers fires the timers that are due, and has expired keys pruned and usage
// measured in between. Any number of processes do so at the same time: rows are claimed
// with SKIP LOCKED, nobody is elected, and no advisory lock is taken.
//
// # A cycle
//
//	probe -> drain -> upkeep -> pause
//	 |        |        |         |
//	 |        |        |         +-- until the next timer, a hint, a gate; MaxSleep at most
//	 |        |        +-- package kv, beside the loop: rollup, then prune, each on its gate
//	 |        +-- claim and fire, while something is due
//	 +-- one read-only call: the database's clock, when the next timer is due, how many are
//
// The pause is a function of four bands and nothing else: work (MinSleep), an empty claim
// (jitter), the next timer, and idle (MaxSleep, for the probe never rests for longer).
// Hints of brokers make it shorter, and are no more than hints. Their instants are of the
// database's clock, and the last probe tells where this process stands on it: a host whose
// clock is wrong fires neither sooner nor later.
//
// # A drain
//
// While more is due than they take, claims are gathered, up to FireClaims of them or
// MaxFireBytes, packed into one segment for each lane, and fired in calls of FireLanes
// segments, or fewer where the bytes are too many. The next batch is claimed while the
// last is fired. Nothing more is claimed after CycleMaxRows, or half of the lease, or when
// the fire is switched off.
//
// What a fire costs is lanes: gathering five claims of 200 makes it cheaper by half.
//
// # Beside others
//
// A backlog has time, and a push has not. A drain that has worked for RestLook asks whether
// sessions other than those of sweepers execute something. While they do, it makes one call
// at a time, of one lane or of a quarter of a claim, and rests after each for RestFactor
// times as long. An empty machine is used as it is; nothing rests before the first fire of
// a drain, nor after half of its lease, nor once timers have been late for RestTime: then
// they are fired as if nobody else was there, until they are hardly late.
//
// Measured on 2026-11-30 on two cores (the row beside of make bench-timers, in short
// blocks, the machine not quite quiet): the p99 of pushes at half of what they reach is 1.8
// times what it is alone in the median of the rounds, 3 times in the worst, and 4.3 times
// where a drain does not give way. Beside them about 1,200 timers a second are fired.
//
// # What becomes of a fire
//
//	fired      the messages are in the log, the timers gone, in one commit; brokers are told
//	stale      a timer of the segment was not held any more: the others are given back at once
//	transient  given back for TransientBackoff, no attempt spent, nothing more claimed for now
//	permanent  repeated one segment a call, then one timer; what still fails spends an attempt,
//	           backs off, and after MaxAttempts is moved among the dead letters
//	schema     (SQLSTATE class 42) spends an attempt, but no timer is dead-lettered for it
//	no answer  nothing is repeated; giving the timers back tells which were fired
//
// A timer that cannot be packed, for its zstd is broken or a field too long, is as one that
// fails permanently, and its segment goes without it.
//
// # Order
//
// While one sweeper drains, a lane gets its timers in the order of their instants, however
// long the backlog and whatever Parallelism: a claim takes the earliest that are due, the
// next one what follows, and a lane stays with one worker. It holds for timers that were
// scheduled before the drain reached their instants, and not for these:
//
//   - timers that were given back, after a failure or because their batch took long to
//     pack, or whose lease lapsed;
//   - those of two sweepers at the same lane, which fire their claims side by side;
//   - all, from one claim to the next, while a shard holds more than its share of the
//     earliest quarter of a claim: keys that many queues have in common do that;
//   - and where FireRatePerTenant is below that share, which is 8 for claims of up to 512,
//     and a 64th of larger ones.
//
// # Under pressure
//
// While the database fails, pauses double and claims halve with every cycle, and the prune,
// then the rollup are left out; where timers become later although cycles take all they may,
// only the latter. The fire never stops but by the operator's switch, which is read each
// second.
//
// # A stop
//
// The fire that is under way is finished, for StopGrace at most, and what is claimed beyond
// it is given back: another sweeper takes it at once.
package timers
