// Package worker is the process around the jobs of a service without clients: its
// command line, its way to the database, the operations listener, readiness, and
// an orderly end.
package worker
