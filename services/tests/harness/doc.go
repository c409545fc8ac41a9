// Package harness runs built services against a private PostgreSQL for the
// end-to-end suite and talks to them as a foreign client would: plain HTTP,
// with every expected shape written down here by hand. It knows none of the
// broker's own types, so a wrong one cannot hide itself.
package harness
