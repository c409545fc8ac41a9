// Package clock lets code whose result depends on the time take it from outside.
// Code that merely waits uses package time.
package clock
