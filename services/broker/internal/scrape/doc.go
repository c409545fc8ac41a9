// Package scrape shows what a broker knows of the whole installation when its metrics are
// collected: lifetime totals, rates and dead letters of queues, read from the database,
// and the pops that wait at this broker.
//
// The database is asked by one call, which is bounded in time, and the answer serves
// whoever collects within the next seconds. A call that takes long is not waited for where
// there is an earlier answer that is not old: with thousands of queues at work it takes as
// long as all the rest. While none can be had the families that come from it are missing,
// and all others are there.
//
// Series are bounded: of the queues, the first Config.MaxQueues have series of their own,
// and all others are one, named other. Which they are the database decides, so that all
// brokers show the same.
package scrape
