// Package retry repeats database work that surely had no effect.
package retry
