// Package errtext turns errors of the database into the texts that clients see
// on single items.
package errtext
