// Package retention deletes what the policies of the queues let go, as the leader
// among any number of replicas.
//
// # A cycle
//
// Every Interval, counted from start to start, a replica tries the session lock
// 737001 on a connection of its own. Where another replica has it the cycle is
// skipped. Otherwise the phases follow in this order, and the lock is given back
// however that ends:
//
//	connect -> try the lock -> plan -> retention -> txns -> eviction -> cleanup -> metrics -> walk -> release
//	                  |           |       |                                                            ^
//	                  |           |       +-- a phase fails: the others follow all the same            |
//	                  |           +-- no plan, and anywhere the session lost or the process told to stop
//	                  +-- another replica has it: skip
//
//	retention  segments that rule 1 (age) or rule 2 (consumed by every group) lets go
//	txns       sidecar rows of the hashes, behind the dedup and the ack window
//	eviction   segments that waited longer than maxWaitTimeSeconds
//	cleanup    empty partitions that were quiet for CleanupAge, once a minute
//	metrics    rows of the metrics tables and of the history older than MetricsAge,
//	           in portions of BatchSize until one is not full
//	walk       a test of the lanes' watermarks, once a minute: for WalkTime against the
//	           lanes' first rows, then against their offsets while some are wrong
//
// There is no transaction around a cycle. Every statement commits alone, holds the
// lock of one lane at most (cleanup apart), and runs on the connection that holds
// the leader's lock. Whoever loses the connection has lost the lock, and can do
// nothing more: so two leaders never overlap. The server ends the session of a
// leader that is silent for ten seconds.
//
// The plan is one statement with one now() from which all cutoffs come. It names
// the queues that have something due and reads no segment; the clocks of cleanup
// and walk are rows of the database, since the lock moves.
//
// # Lanes, pages, steps
//
// The first three phases go through the lanes of the queues that the plan names, in
// the order of the lanes' oldest rows, a page of 1000 at a time; a page says which
// of its lanes are deletable without reading a segment. Each of those gets steps of
// BatchSize rows, ascending by id, until one says that it is done. A step that takes
// longer than StepTime is followed by smaller ones, because pushes of its lane wait
// for it.
//
// Queues take turns of TurnTime while others wait. A phase that deletes yields after
// PhaseTime, one that only looks after LookTime, and the next cycle goes on with the
// queues behind. A cycle that yielded in the middle of deleting has overrun its time
// and is followed by another one at once.
//
// While other sessions are at work on the database, the first two phases rest three
// times as long as they work: a backlog has time, and a push has not. Measured on two
// cores, pushes then keep 0.8 of their throughput or more, and a sweep still deletes
// about 6000 segments a second.
//
// What a step meets:
//
//	its lane is locked, or it takes too long   counted; the lane is put aside
//	an error                                   the same, and the cycle has failed in the end
//	ten errors in a row that may come from     the phase ends
//	the database as a whole (full, no schema)
//	the session is lost                        the cycle ends
//
// A page that cannot be read counts as an error, and leaves its queue to the next
// cycle.
//
// # Lanes put aside
//
// Each phase remembers up to AsideLanes lanes that were locked or failed. They are
// passed over for HeldMin, then twice as long, up to HeldMax; those of the eviction,
// which has a promise to keep, for EvictPause up to EvictHeldMax. Then they are tried
// again, behind all other lanes of their queue, so that however many there are no
// other lane waits for them for long. A step waits a second for its lane; once one
// has waited in vain, the others of that run wait HastyWait. What finds no room in
// this memory is met again in every cycle.
//
// # Held lanes
//
// A lane that is due by rule 2 alone is held while the slowest group has not
// consumed its first segment, or no group was ever there. There may be a million of
// them for as long as an abandoned group exists, so they are not looked at in every
// cycle. The leader cuts the order of a queue's lanes into ranges:
//
//	            aged               held ranges               fresh
//	|------------------------|------|-------|-----|------------------------| cutoff of rule 2
//	                  cutoff of rule 1
//
//	aged    looked at in every cycle, first: rule 1 holds nothing back
//	fresh   looked at in every cycle, next; what is held becomes the topmost range
//	ranges  each is looked at again after HeldMin, then twice as long, up to HeldMax,
//	        the longest overdue one first; something deleted in it begins anew, one
//	        without held lanes goes to its neighbour, small ones of the same
//	        age become one
//
// Ranges leave no gap, so that a lane whose watermark was repaired lands in one. So
// does a lane whose head was deleted, and waits there for that range's look. A
// range is about 1000 lanes and 80 bytes: 0.08 bytes a lane, measured over 1,000,000
// lanes (TestMemoryOfHeldLanes, which fails above 0.13). All of it is in memory; a
// new leader starts over.
//
// # Evictions
//
// An eviction should not wait for a cycle, nor for a backlog. After its phase the
// leader asks when the next one falls due. Before the next cycle it gets a turn at
// that instant, which is lock, plan, eviction, release, at most once a second; within
// a cycle the other phases yield to it once they have had LookTime. So one comes at
// most about four seconds late, whatever else there is to do. A cycle that fails
// leaves the turn in place. In the one cycle of run-once no phase yields to it.
//
// # What is told
//
// A line at info for a cycle that deleted something, at debug for an idle one; the
// turns of the eviction are told with the next cycle. Errors of cycles, and of the
// lock's release, have a line every ErrorQuiet at most, those of the metrics purge,
// which fail no cycle, every PurgeQuiet. Metrics and spans are per phase. Where this
// replica does not lead, or its cycle ended early, the gauges of what is due show
// nothing; that of the time since the last success goes on.
package retention
