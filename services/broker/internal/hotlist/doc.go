// Package hotlist remembers in memory which lanes of a queue may have something
// for a consumer group, so that a pop names its candidates instead of searching
// for them in the database.
//
// It is a hint and nothing else. Listing too much costs an empty claim; what it
// misses is found by the watch within about a second while anybody waits for it,
// and by the next walk otherwise. It may be lost at any moment.
//
// # Structure
//
// A queue has a table of its lanes: a dense number for every partition name, and
// the partition id where it is known. Every group that pops the queue has a ring
// over these numbers, cut into shards with a lock each. A lane has a slot of 24
// bytes in the ring of each group. A slot is in one of four states:
//
//	idle      nothing is known to be there
//	ready     in the FIFO of lanes to claim
//	wheel     to be looked at again at a time: in a heap, whose outdated entries
//	          are dropped when they come up
//	inflight  checked out by a pop
//
// A number whose slots are all idle is given back at the idle sweep, so the table
// follows the lanes that are in use, not all that ever were.
//
// # Marks
//
// A mark says that a lane has work. It comes from a push, from a transaction or
// another broker, or from a row that a walk or the watch has read. Besides adding
// to the count of messages it notes that the slot is fresh, and then:
//
//	idle      no deferral         ready
//	          delayedProcessing   wheel, first mark + delay + 300 ms
//	          windowBuffer        wheel, first mark + window; or ready, once the
//	                              marks reach QUEEN_HOTLIST_WINDOW_BATCH
//	          a row               ready: nobody knows since when it is there
//	wheel     windowBuffer        ready, when the marks reach the threshold
//	          otherwise           stays
//	ready     stays
//	inflight  stays; the check-in sees that it is fresh
//
// A cursor that moved back makes its lane ready from idle and wheel alike. A mark
// without a lane makes the rings of the queue due for a walk; one of a group whose
// cursors have all moved does so to its ring, and that walk frees the lanes it lists.
//
// # Check-out and check-in
//
// A check-out promotes what is due on the wheel and takes ready lanes in turn from
// the shards, stopping early once their marks cover the batch. The slot's epoch
// tells a check-out from later ones of the same slot: a check-in that comes after
// the slot was reclaimed, or the ring dropped, is discarded.
//
//	took, leased     wheel until the lease expires, at most 1 s; emptied says that
//	                 the claim reached the lane's last offset
//	took, auto-ack   something left: ready; nothing left: idle, unless fresh
//	empty            idle, unless fresh; or wheel while a deferral may hide
//	                 something: until the last mark + deferral + 1.6 s
//	leased until T   wheel, T + 300 ms, at most 1 s
//	locked           wheel, 20 to 30 ms: somebody merely held the row
//	none             ready again, where it was: at the head
//	abandoned        ready again, at the tail
//
// An unlocked, fresh lane goes where a mark would put an idle one. A check-in that
// makes a lane ready wakes a pop for it.
//
// When a lease ends with all of its batch settled, Promote frees the lane: to
// ready when the claim had left something, to where a mark would put it when only
// fresh marks are there, else to idle. A lease that ends while the lane is checked
// out again is noted and used at the check-in.
//
// # Other brokers
//
// Every broker hears of every push and of the end of every lease, so all would
// claim a lane at once, and all but one in vain. Two things keep that rare:
//
// A claim tells the peers what it took. They leave the lane alone (wheel, 20 ms; a
// longer lease is found by a claim) and take the messages off the marks, so that
// the end of the lease finds a lane idle in which nothing is left. Rows and moved
// cursors count no messages and stay fresh.
//
// While more than about three claims in a hundred come too late, a mark or the end
// of a lease makes a lane ready only after Yield for each broker that comes before
// this one at the lane, by an order on which all agree. The first one does not
// wait, and the claim of whoever was there is known to the others by then.
//
// # Windows
//
// SQL applies delayedProcessing always, and windowBuffer unless it is told that
// the ring has (SkipWindow). A check-out says so only when every lane in it has
// waited out its window here or has reached the threshold; lanes of the two kinds
// are not mixed. While the settings of a queue are not known nothing is deferred
// and SQL decides. Settings are read again after 30 s, and at once when told.
//
// # Walks and the watch
//
// A ring is made by Reseed and registered before the walk reads its first page, so
// that no mark falls between. Until the first walk has ended, and while one is due
// because a mark named no lane, an empty ring answers Cold. Every walk is a full
// one; it looks at no watermark. Rings that nobody pops are not walked.
//
// A pass reads at most 200 pages of 10,000 lanes. The table of a queue holds at
// most 2,000,000 lanes: a pass that comes to either bound stops there, and the
// next one goes on where it stopped. Lanes beyond the bound wait until others have
// been served; those that are known are served all the while.
//
// The watch asks once a second, in one statement for all rings that were found
// empty lately, for lanes written in the last 3 s. A lost hint costs that second.
//
// # Memory
//
// Measured over 100,000 ready lanes of one group whose partition ids are all known
// (TestMemoryPerLane, which fails above 64): 63.2 bytes a lane without its name, for
// the slot (24.8), the index of names, the id and the index of ids. A name of 16
// bytes adds 32, half of it the string header. A second group adds another 24.8. A
// lane on the wheel takes 16 more, and so does one of a queue with a deferral.
//
// Bounds: 2,000,000 lanes a queue; a check-out is two allocations; a mark is none.
package hotlist
