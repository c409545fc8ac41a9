// Package report tells people and programs what a sweep did.
package report
