package logging

import "time"

// Quiet lets one line of a kind through in a while. It is not safe for concurrent use.
type Quiet struct {
	Every time.Duration // the least time between two lines

	last time.Time
	left int
}

// Speak tells whether the line may be written, and how many were left out before.
func (q *Quiet) Speak() (left int, ok bool) {
	now := time.Now()
	if !q.last.IsZero() && now.Sub(q.last) < q.Every {
		q.left++
		return 0, false
	}
	left, q.left, q.last = q.left, 0, now
	return left, true
}
