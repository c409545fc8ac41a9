// Package watch looks at the database, and shows what alerts are made of: the state of
// PostgreSQL itself, the backlogs of queues, and the lag of consumer groups.
//
// Every replica looks for itself and shows the same, so that alerts do not depend on
// who leads: aggregate with max. What is shown is a look, and goes when none has
// succeeded for some minutes. A look at the lag of groups reads all partitions; it takes
// a twentieth of the time at most.
package watch
