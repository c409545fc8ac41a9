// Package mesh joins a sweeper to the hint pool: brokers tell when a timer is due and
// that a switch was flipped, and are told which lanes have new messages.
//
// Nothing has to be put right after a hint that was lost. The sweeper probes the
// database every second, and brokers look for themselves while pops wait.
package mesh
