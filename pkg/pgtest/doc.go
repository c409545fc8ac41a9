// Package pgtest hands tests databases of their own: one private server per
// test binary (or the one QUEEN_TEST_PG_URL names), a template with the schema
// applied once, and a clone of it for each caller.
//
// A clone of a template rather than a schema per test: our SQL names its schema
// literally, and advisory locks are scoped to a database. Cloning and dropping cost
// about 17 ms where the server's data is in memory (pglocal.ScratchRoot), by copying
// files (STRATEGY file_copy): half of what writing them through the log costs.
//
// A private server starts from a copy of a finished cluster, template included,
// that is kept in the user's cache folder under the server's version and the
// schema's fingerprint.
package pgtest
