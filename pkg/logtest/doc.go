// Package logtest gives tests a logger that writes to the test's own log, and
// one whose lines they can look at.
package logtest
