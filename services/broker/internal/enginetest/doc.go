// Package enginetest holds the tests of push, pop, ack and transactions together
// on a real database.
package enginetest
