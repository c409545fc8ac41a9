// Package lanes remembers which queue a partition id belongs to, for requests
// that carry only the id.
package lanes
