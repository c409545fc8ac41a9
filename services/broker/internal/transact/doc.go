// Package transact runs atomic bundles of pushes and acknowledgements, and of the
// operations on keys and timers that ride with them. All of a bundle is one call of
// the database, also when it has nothing but riders.
//
// What a bundle with riders is answered, beside the answers that every bundle may get:
//
//	400 bad_request             they are malformed, or too many; found before the
//	                            database was asked
//	200 bad_request             the same, found by the database
//	200 payload_too_large       a key, a value or the payload of a timer is too long
//	200 timer_horizon_exceeded  a timer is too far ahead
//	200 kv_precondition         a write that is required was not applied
//	403 kv_disabled             an operator has switched off operations on keys
//	403 timers_disabled         or the scheduling of timers; cancels go on
//	403 feature_gated           the tenant may not use them
//	403 kv_quota_exceeded, timers_quota_exceeded
//	429 rate_limited            with Retry-After
//	503 kv_unavailable, timers_unavailable
//	                            with Retry-After: grants are needed and not read yet
//
// In none of these cases has anything been written. Clients repeat what is answered
// with 429 or 5xx, and take a broker that answers 5xx for a broken one; so only what
// passes by itself, and within seconds, is answered in this way. What lasts until
// somebody acts is final (4xx), and so is what will never succeed: 4xx or, where the
// database might as well have found it, 200 with the reason, as for a duplicate.
//
// A switch that is off is answered with 403 also where the routes of keys and timers
// answer 503: the bundle is refused for one of its parts, and all the work of making it
// would be repeated in vain. The message behind it is delivered again when its lease
// ends.
//
// The tenant is charged for what the riders may create before the bundle is submitted,
// and gets it back unless the bundle has committed, or may have: after a lost answer
// the charge stays until the next measurement.
package transact
