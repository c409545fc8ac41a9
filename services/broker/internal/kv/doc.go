// Package kv carries out operations on keys: it looks at them before the database
// does, asks whether the tenant may, and turns what the database answers into what
// the wire says.
//
// Operations on single keys that meet share a call of the database (see fuser): most of
// what such a call costs is not its statement.
package kv
