// Package rates logs at intervals what a process did, and nothing while it did nothing.
//
// Sources tell totals, which only grow, and states. The line "rates" has by how much a
// second each total has grown since the line before, and the states as they are. Where
// no total has grown there is no line: what a process did in an interval, and that it
// did nothing, is never told later.
package rates
