// Package timers fires the timers that are due, and has expired keys pruned and usage
// measured in between.
package timers
