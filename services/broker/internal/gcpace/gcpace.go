// Package gcpace keeps the garbage collector from running all the time while the
// heap is small.
//
// The runtime collects when the heap has grown by a percentage. Where little is
// live but much is allocated, as in a broker whose requests come and go, that is
// many times a second. Here the percentage is set anew after every collection, so
// that the heap may always grow to a floor at least. A memory limit (GOMEMLIMIT)
// still comes first.
package gcpace

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// live is what the last collection has left, in bytes.
const live = "/gc/heap/live:bytes"

// pace is in force until it is stopped.
type pace struct {
	floor   uint64
	percent int
	set     int // percent in force
	stopped atomic.Bool
}

// Keep lets the heap grow to floor bytes, and by percent over what is live, before
// it is collected; stop leaves percent in force. There may be one at a time.
func Keep(floor uint64, percent int) (stop func()) {
	p := &pace{floor: floor, percent: percent}
	p.adjust()
	p.watch()
	return func() {
		p.stopped.Store(true)
		debug.SetGCPercent(percent)
	}
}

// sentinel is garbage from the start: its end tells of a collection. It must not be
// tiny, as tiny objects share their memory with others.
type sentinel struct{ _ [4]uint64 }

// watch has the percentage set anew after the next collection.
func (p *pace) watch() {
	runtime.AddCleanup(new(sentinel), func(p *pace) {
		if !p.stopped.Load() {
			p.adjust()
			p.watch()
		}
	}, p)
}

// adjust sets the percentage for what is live now. Small changes are not worth the
// stop of the world that each one costs.
func (p *pace) adjust() {
	want := Percent(heapLive(), p.floor, p.percent)
	if d := want - p.set; d > p.set/10 || -d > p.set/10 {
		p.set = want
		debug.SetGCPercent(want)
	}
}

func heapLive() uint64 {
	s := []metrics.Sample{{Name: live}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// Percent is how many percent a heap of live bytes has to grow to reach floor, and
// at least percent.
func Percent(live, floor uint64, percent int) int {
	// The runtime treats less than this as this, at 100 percent.
	const least = 4 << 20
	live = max(live, least)
	if live >= floor {
		return percent
	}
	return max(percent, int(min((floor-live)*100/live, math.MaxInt32)))
}
