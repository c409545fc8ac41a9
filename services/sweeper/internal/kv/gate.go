package kv

import "time"

// gate opens every so often.
type gate struct {
	every, most time.Duration // usually, and at most while nothing happens
	began       time.Time     // of the last turn; zero: none
	doublings   int           // of every, while nothing happens
}

// next is when the gate opens.
func (g *gate) next() time.Time {
	if g.began.IsZero() {
		return time.Time{}
	}
	return g.began.Add(stretched(g.every, g.most, g.doublings))
}

// pass notes a turn that begins now. One that follows others of which nothing came
// makes the time to the next one longer.
func (g *gate) pass(now time.Time, idle bool) {
	g.began = now
	if idle {
		g.doublings++
	} else {
		g.doublings = 0
	}
}

// stretched doubles a time, up to most. What is longer already stays.
func stretched(every, most time.Duration, doublings int) time.Duration {
	d := every
	for ; doublings > 0 && d < most; doublings-- {
		d = min(2*d, most)
	}
	return d
}
