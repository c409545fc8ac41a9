// Package pglocal provides a private PostgreSQL server on this machine: it
// finds binaries or installs them, makes a data directory, and runs the server
// as another user when it is started by root. Tests and the local stack use it;
// no service does.
package pglocal
