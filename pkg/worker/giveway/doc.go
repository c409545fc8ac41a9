// Package giveway has the work of a backlog give way to others. A backlog has time, and
// a push has not: while other sessions are at work on the database, work is followed by
// rests. An empty machine is used as it is.
package giveway
