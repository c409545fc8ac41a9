// Package mesh joins a broker to the hint pool: what the broker announces goes
// out as hints, and the hints of others do here what an announcement of our own
// would, except that they are not passed on.
//
// Nothing has to be put right after a hint that was lost. Messages are found by
// the re-checks of the pops that wait, and whoever remembers something about
// queues reads it again within 30 s.
package mesh
