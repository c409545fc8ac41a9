// Package check tries an installation out from outside, by its HTTP surface alone: it
// makes a queue of its own, sends messages through it, waits for a timer, uses a key,
// and removes all of it again, whatever happens in between.
package check
