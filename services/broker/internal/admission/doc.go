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
//	TryAcquire ── free slot and nobody waits ─────────► admitted
//	   └── else ─► refused; one claim of its class joins the queue. When its turn
//	               comes the slot is set aside for the next TryAcquire of the
//	               class, and given to others when none comes within asideFor.
//
// The claim is what keeps a caller that polls from being starved by callers that
// wait.
//
// # Requests that share a transaction
//
// A request that waits for a shared transaction owns no slot; the transaction
// does. Enter counts such requests against the same bound as the queue, and
// whoever lets them wait withdraws those that MaxWait has passed over.
package admission
