// Package quota decides what tenants may do with keys and timers: the operator's
// switches, grants, how much a tenant occupies, and how fast it goes.
//
// It is a view in memory. The switches are read every second, quotas and usage more
// seldom, and between two readings the package goes on with what it knows: a request
// is never decided by a call of the database. Every broker decides for itself, so a
// rate is a rate for each of them.
//
// A request passes the switch, the grant, the occupancy and the rate, in this order,
// and the first that refuses it is the answer.
//
// Occupancy is what was last measured for all brokers, and what this one has let pass
// since: as an upper bound, since only the database can tell a new key from an old
// one. That share is forgotten when there is a newer measurement, and only then.
//
// Rates are buckets of tokens, one for the reads of a tenant, one for its writes and
// timers, and one for the whole broker. A request takes a token for each of its
// operations. One that is larger than a bucket passes when the bucket is full and
// leaves a debt, so that it passes at all and yet costs what it is. A rate of 0 in
// the configuration sets no bound, a rate of 0 in the quota of a tenant admits nothing.
package quota
