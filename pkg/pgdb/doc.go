// Package pgdb is the connection to PostgreSQL: a pool whose sessions carry the
// settings every service needs, and one way to run a named piece of work on a
// connection under a deadline. It contains no SQL of the product.
package pgdb
