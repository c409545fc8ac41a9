// Package store calls the stored procedures of schema queen: one typed Go
// method per procedure, and the only place that does so.
package store
