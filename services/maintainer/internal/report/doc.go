// Package report tells people and programs what a retention cycle did.
package report
