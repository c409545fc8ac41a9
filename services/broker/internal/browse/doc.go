// Package browse shows messages to people: it adds to what the database knows of a
// message what only its segment holds, within bounds of bytes and of segments.
package browse
