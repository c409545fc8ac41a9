// Package config holds everything an operator can set on a sweeper.
package config
