// Package deadletter completes the dead-letter hand-off of a poison message,
// whose offset the database reports and whose content only the broker can read.
package deadletter
