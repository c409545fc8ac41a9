// Package fusion lets pushes of different requests share segments and
// transactions, so that the database's work grows with commits and not with
// requests.
//
// A part is what one request adds to one lane. Every lane is in one of three
// states:
//
//	idle       nothing waits, nothing is being written; the lane is not in memory
//	ready      parts wait, nothing is being written; it stands in its shard's queue
//	in flight  a flight of its parts is being written; later parts accumulate
//
// A part that arrives at an idle lane makes it ready. When the shard writes no
// bundle, the arrival starts one at once: there is no timer and, unless other
// brokers write to the same lanes, no linger. Beside others a bundle starts only
// when enough waits for it (parallelBytes, parallelLanes). A bundle takes an
// admission slot first and looks at the queue second, so that whatever gathered
// while it waited for the slot goes along: all ready lanes up to BundleMax and
// MaxBundleBytes, each with the parts it has by then, packed as one segment. When a
// flight is over, after its commit and never before, its lane becomes ready again
// or idle. So offsets follow the order of arrival, and under load segments and
// bundles grow by themselves.
//
// A shard holds the lanes of its queues, so that one request's lanes meet in one
// bundle. A bundle that ends looks at the queue again before it stops; nothing can
// be stranded and no tick is needed.
//
// What becomes of a flight:
//
//	queued      its messages are settled
//	duplicate   the named messages are settled, the others packed and submitted
//	            again while the lane stays in flight
//	busy        another transaction holds the lane: once more among its kind with
//	            a short wait, then alone, outside the bundle (design rule 13). The
//	            next bundles wait shortly from the start: another broker's bundles
//	            would turn them away again. And they are fewer and larger, since
//	            small ones gather for a few milliseconds after the one before
//	aborted     the bundle is submitted again, until the deadline of its parts
//	ambiguous   again, if the window can tell whether it was stored (rule 6)
//	refused     halves of the bundle, then of the segment, are submitted one after
//	            the other until the refusal concerns single messages
//
// Only the first submission of minted ids goes without a mark (rule 5); every
// other one carries what the dedup cache can vouch for. The database decides. A
// lane whose window the cache has to read first leaves the bundle when that takes
// longer than readWait, and is written alone.
package fusion
