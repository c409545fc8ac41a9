// Package boot is the way of every service to its database: it waits for
// PostgreSQL, then for the schema, shows the pool in the metrics, and closes it
// within a deadline.
package boot
