// Package config holds everything an operator can set on a broker.
package config
