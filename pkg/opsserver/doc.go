// Package opsserver is the listener for operators that every service has, apart
// from what it serves to clients: liveness, readiness, health, metrics and, when
// enabled, profiles.
package opsserver
