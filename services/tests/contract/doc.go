// Package contract compares answers of a broker with the description of its routes.
package contract
