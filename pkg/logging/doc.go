// Package logging builds the process's logger and names the keys of its attributes.
package logging
