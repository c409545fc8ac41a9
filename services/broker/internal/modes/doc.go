// Package modes keeps operators' flags: what holds traffic back, and what is switched
// off. They are read by every request, so they are in memory; the database has them
// for other processes and for the next start.
//
// A change holds here at once and is recorded then. Others see it when they read the
// flags, which they do every second, and sooner when they are told. What could not be
// recorded holds in this process alone until the record itself changes: then somebody
// has decided anew.
package modes
