// Package wake lets long polls sleep until something may have become
// deliverable, and wakes no more of them than can be served.
package wake
