// Package timers carries out operations on timers: what the edge checks and adds
// before anybody takes a connection, and the calls of the store behind the routes.
package timers
