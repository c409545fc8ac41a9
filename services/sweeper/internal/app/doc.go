// Package app assembles a sweeper from its parts and runs it.
package app
