// Package lifecycle starts the parts of a process in order, stops them in the
// reverse order under one deadline, and keeps loops running through errors.
package lifecycle
