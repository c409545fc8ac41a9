// Package admission bounds how many requests use the database at once, in front
// of the connection pool, and how long others may wait for their turn.
package admission
