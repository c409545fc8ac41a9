// Package app puts a broker together: it boots in order, runs until it is asked
// to stop, and stops in reverse order under one deadline.
package app
