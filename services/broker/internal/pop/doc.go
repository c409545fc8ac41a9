// Package pop claims messages for one request, waiting for them when asked to,
// and renders the reply.
//
// # One look
//
// A look takes an admission slot, then a connection, and claims. What it claims
// from:
//
//	one partition, or labels   the database
//	a queue, no hot list       the database, which searches the queue
//	a queue with a hot list    the lanes that the ring of the group names
//
// An empty ring answers without slot or connection. A ring that is missing or
// cold, and an answer that the group is not registered, lead to the search by the
// database, which registers the group; then the ring is derived in the background.
// A pop that does not wait has the database confirm, at most once a second for
// each group of a queue, that there is nothing.
//
// Every candidate is given back to the ring with what became of it, or as it was
// when the claim did not come to it, failed or its client left.
//
// Where the ring has lanes, a pop of one lane claims together with others of its
// group, in a transaction that they share, and under a lease of its own (package
// popfusion). What such a claim does not serve, a lane that is not as the ring
// thinks or one that holds messages back, it asks for alone. A pop of several lanes
// goes alone, in the pace of its group.
//
// # Waiting
//
// A pop that waits is registered with the wake hub before its first look. Then it
// is in one of these states:
//
//	looking --nothing--> resting --wake--> looking ...
//	looking --served, failed--------------> answered
//	resting --deadline, client left-------> answered
//
// Resting it holds no goroutine, slot or connection: a wake starts a goroutine for
// one look. An announcement during a look leads to another look. A wake that was
// not answered is handed to the next waiter.
//
// A resting pop of one lane may also be seized by the acks of a batch: it rides in
// their transaction, which ends the lease of a lane and leases it anew. It is
// answered, or looks for itself when it rode in vain:
//
//	resting --seized--> riding --served--> answered
//	                       '----nothing, failed--> looking
//
// A ride whose whole batch is in memory, of a segment that was delivered in part or one
// that this broker has just written (package tails), is a handover: the update that
// commits the batch before it leases its own, if the segment is still stored.
//
// What nothing announces, a lease that expires or a hint that is lost, is found by
// a re-check that all pops parked on the same topic share: for single partitions
// one statement asks about all of a broker's topics, pops that the hot list serves
// look in memory once a second while the list reads what was written lately, and
// for the others the database is asked at the intervals of POP_WAIT_*.
//
// # Rendering
//
// Segments are decoded into pooled buffers and spliced into the reply. One of
// which only a part was delivered is kept decoded for the next pop of the lane,
// which then tells the database that it need not be sent; a small one only where that
// spares the next pop its claim.
package pop
