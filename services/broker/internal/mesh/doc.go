// Package mesh joins a broker to the hint pool: what the broker announces goes
// out as hints, and the hints of others do here what an announcement of our own
// would, except that they are not passed on.
//
// It also has what brings a broker back in step that missed a hint about a
// queue: from time to time everything remembered about queues is forgotten.
package mesh
