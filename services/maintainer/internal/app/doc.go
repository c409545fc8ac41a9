// Package app assembles a maintainer from its parts and runs it.
package app
