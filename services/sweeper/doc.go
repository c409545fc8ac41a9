// Package sweeper is the module of the leaderless service that fires due
// timers and prunes expired key/value rows. Any number of replicas share the
// work with SKIP LOCKED; it holds no advisory lock and never applies the schema.
package sweeper
