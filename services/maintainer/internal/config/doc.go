// Package config holds everything an operator can set on a maintainer.
package config
