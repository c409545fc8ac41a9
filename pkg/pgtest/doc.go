// Package pgtest hands tests databases of their own: one private server per
// test binary (or the one QUEEN_TEST_PG_URL names), a template with the schema
// applied once, and a clone of it for each caller.
//
// A clone of a template rather than a schema per test: our SQL names its schema
// literally, and advisory locks are scoped to a database.
package pgtest
