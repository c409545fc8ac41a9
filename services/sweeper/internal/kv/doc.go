// Package kv does what nobody waits for: it prunes expired keys, and measures what
// tenants use. Both work beside the cycle that fires timers, one thing at a time,
// rollup before prune, each behind its own gate.
//
// An expired key is hidden from its instant on, so a late prune shows nowhere but in
// the size of a table that never shrinks. Every pass therefore reports what is left,
// also when it deleted nothing.
//
// Either may be left out under pressure, and either is switched off until the process
// ends by an error that says its procedure is not there, or not allowed (SQLSTATE
// class 42).
package kv
