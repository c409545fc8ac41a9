// Package config fills configuration structs from environment variables,
// strictly: every problem is found, and all are reported in one error.
package config
