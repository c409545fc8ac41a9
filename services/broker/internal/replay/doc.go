// Package replay moves dead letters back into lanes.
package replay
