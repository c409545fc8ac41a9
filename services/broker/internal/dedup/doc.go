// Package dedup remembers the dedup windows of lanes, so that a push need not
// search its window in SQL while it holds the lane.
//
// It never decides. Mark says of a segment's hashes: none of them occurs at or
// below offset Verified of partition PartitionID, as far as a window of Window
// seconds reaches, except perhaps in the sidecar rows that begin at Suspects. SQL
// then reads those rows by primary key and searches what lies above Verified,
// both under the lane's lock, and its verdict counts. A mark belongs to a
// partition id, so it is worth nothing once the lane was deleted and made anew.
//
// # States of a lane
//
//	unknown  --read lane-->   absent | windowless | ready | barred
//	absent      no such partition: nothing to verify. Asked again after a second;
//	            the first own write (offset 0) makes it ready.
//	windowless  the queue's window is 0: VerifiedNone, no reads for 30 s.
//	ready       every hash in (start of the window, verified] is remembered. tip is
//	            the highest offset known to be assigned, gap = tip - verified.
//	barred      it did not fit the budget, for 30 s: see below.
//
// A ready lane moves in three ways. An own write right behind verified is
// appended (Wrote). A page of the sidecar behind verified is read and appended:
// that is hydration while the lane is cold and catching up with other writers
// later, the same step. And what is remembered becomes void, back to unknown: the
// id changed, the window grew, or an own write says that offsets were assigned
// twice (a failover that lost commits).
//
// Mark answers at once when gap is small: SQL searches that much in a fraction of a
// millisecond. Otherwise it reads pages until it is; all who wait for one lane
// take turns, so that each page is read once, and nothing runs in the background.
// A lane that keeps somebody waiting for half a second is answered with a gap that
// SQL searches in well under 50 ms, and after Config.Wait with whatever is
// verified by then. Rows of one lane become visible in offset order, so that
// reading them in order leaves nothing out.
//
// The name, id and window of a lane are read again after 30 s, sooner while other
// writers have been seen. Between those reads a tip that only others moved is not
// known, and SQL searches what they wrote.
//
// Two things are noticed late, within 30 s unless somebody calls ForgetQueue or
// writes to the lane. A window that grew: SQL refuses the mark and searches the
// window itself. A failover that lost commits whose offsets another broker has
// assigned again: until then a mark may cover offsets that this broker never read.
//
// # Memory
//
// A lane's newest ids are in an open block, by 64 bits of their hashes. Full
// blocks are sealed: 32 bits of each hash in offset order, one bit to mark where a
// row begins, and a binary fuse filter; 64 sealed blocks share one more filter.
// Together less than 7 bytes for an id. A hit names the row that covers its
// offset. Blocks leave when their newest row is older than the window and 5 s.
//
// A lane that would exceed the budget is barred, after lanes nobody used for 5 s
// were evicted. A barred lane's window is read page by page for each Mark and
// compared with the hashes at hand: slow, but nothing is held meanwhile.
//
// # Locks
//
// A shard's lock guards its map, an entry's lock what is remembered of one lane;
// neither is held during a read, and never both at once. The entry's token is
// held by whoever reads for the lane.
package dedup
