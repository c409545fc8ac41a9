// Package buildinfo tells which build this is: from what the linker was told, else
// from what the go command notes in every binary.
package buildinfo
