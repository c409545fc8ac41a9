// Package ackfusion commits full-batch acks, whose whole effect is to move one
// cursor to the end of its leased batch, many to a transaction.
//
// Lanes are divided among shards by partition id. A shard has rows that wait and
// at most one flight that gathers:
//
//	idle ── first row: the caller leads ──▶ taking a slot ── slot ──▶ flying
//	  ▲                                        ▲                        │
//	  └────────── nothing waits ◀──────────────┴─── rows wait ◀── landed or stuck
//
// A row that comes while the shard is idle is flown at once, by the goroutine that
// brought it, unless others are about to come (below). What comes during a flight waits
// and flies together afterwards, so that bundles grow with the time a commit takes. Rows
// are taken when the slot is had, not before: those that came in the meantime fly too.
// Rows of one lane, group and lease are one row, up to the larger end.
//
// Pops that wait for the lanes of the rows may ride along (Riders): they claim in
// the same transaction, after the rows have released their leases. A lane is handed
// to the next consumer with one commit that way. A row whose lane was handed on is
// told so, since nobody else need look there. Where the broker has the next messages
// in memory, one update ends the lease and makes the new one (a handover). A row whose
// handover is refused flies again by itself, without riders.
//
// Consumers that were served that way send their next acks at about the same time. The
// first of them to come waits for the others, no longer than a flight takes, and ever
// less often while they do not come: a flight of eight lanes costs little more than one
// of a single lane. A consumer that is alone waits for nobody.
//
// The slot of admission belongs to the flight; the requests that wait are bounded
// by Gate.Enter and withdrawn after its MaxWait.
//
// No flight waits for one cursor (design rule 13). A bundle skips rows that are
// locked by somebody; each of them then flies alone, waiting. A row that flies by
// itself does wait, and so does everything on a slow database: after a while, some
// ticks of Hold, the shard takes such a flight for stuck and starts the next one
// beside it.
//
// An abort that surely changed nothing is tried again until Deadline. When the
// answer was lost the verdict is Unknown. An error that repeating cannot mend
// splits the bundle, so that a row which causes it fails by itself.
//
// Waiting requests are the owners of all goroutines here: each ends when the rows
// it flies have their verdicts.
package ackfusion
