// Package collector counts what a process does per queue and writes it to
// PostgreSQL, together with the state of the process.
//
// A request is counted once, by one lock of one shard of Counters; messages cost
// nothing of their own. A Collector takes the counts every Config.Flush, and once
// more when it is stopped. What it has taken is one flush, with an id: it is written
// as a whole, and offered again with the same id until the database has it, so that
// no failure loses or doubles a count. Meanwhile the counters go on.
//
// Memory is bounded by the number of queues that are counted at the same time. A
// queue beyond that has the flush made early; until then it only counts for the
// process.
package collector
