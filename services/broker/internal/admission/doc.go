// Package admission bounds how many requests use the database at once, in front
// of the connection pool, and how long others may wait for their turn.
//
// # Slots
//
// A transaction of the hot path holds one slot, taken before its connection.
// Below the budget every class may take one. Once the budget is used up,
// requests queue, first in first out within their class, and a slot that becomes
// free goes to a waiting class that holds less than its share, in the order ack,
// pop, push, maint; if none does, turns are dealt in proportion to the shares, so
// that no class starves however small the budget is.
//
//	Acquire ── free slot ──────────────────────────► admitted ── release ─► gone
//	   │                                                ▲
//	   ├── queue full ─► ErrOverloaded                  │ slot freed, own turn
//	   └── else ───────► waiting ───────────────────────┘
//	                        └── MaxWait ─► ErrOverloaded, ctx ended ─► its error
//
// # Requests that share a transaction
//
// A request that waits for a shared transaction owns no slot; the transaction
// does. Enter counts such requests against the same bound as the queue, and
// whoever lets them wait withdraws those that MaxWait has passed over.
//
// # The budget
//
// How many transactions a database serves best depends on how long its log takes
// to be flushed, since one flush completes all that wait for it. Commits that
// complete within TrainGap of each other are one train, and trains tell the flush
// cycle. Once per Tick a control law looks at what happened:
//
//	commit time below twice the gap, 3 ticks     pinned to NoSync: nothing to see
//	oldest transaction older than 4 cycles,      shrink by a tenth, not below Min
//	  2 ticks, and the cycle is not widening
//	somebody found the budget used up            grow by a tenth, not above Max
//	otherwise                                    hold
//
// A level that had to be left is not tried again for 6 ticks, and twice as long
// after every further failure, so the budget settles instead of swinging. An
// eighth of the transactions may be old without being taken for late: they may
// stand behind a lock.
//
// Each class has a cap of its own, which starts at Init. A class that met its cap
// while the budget had room gets a tenth more for a tick, which it keeps if that
// was of use, and else is left alone for 6 ticks:
//
//	push, ack, maint   5 % more completed
//	pop                the oldest ready lane is 10 % younger, or younger than 10 ms;
//	                   undecided while it is older only because the load has grown
//
// The law starts from two thirds of the slots and never goes below, so whatever it
// makes of a database it costs at most a third of the concurrency.
package admission
