// Package stats keeps queen.stats true: it refreshes the figures of all queues,
// namespaces and tasks, and now and then measures the bytes they retain.
//
// Every replica runs it. A lock of the database makes them take turns, and the
// clocks are in the database too, so that two replicas do no more than one, and
// either goes on when the other is gone.
package stats
