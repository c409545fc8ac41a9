// Package kv carries out operations on keys: it looks at them before the database
// does, asks whether the tenant may, and turns what the database answers into what
// the wire says.
package kv
