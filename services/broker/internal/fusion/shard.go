package fusion

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// lane is a lane that parts wait for, or that is in flight.
type lane struct {
	Lane
	waiting  []*Part
	bytes    int // of them
	inFlight bool
}

// shard holds the lanes of some queues. Its lock is held for bookkeeping only.
type shard struct {
	mu      sync.Mutex
	lanes   map[Lane]*lane
	ready   []*lane // lanes with parts, not in flight, in order of arrival
	bytes   int     // that wait in them
	bundles int     // being written, or about to be
	// meetings is how many more bundles wait for their lanes from the start, since
	// one was turned away.
	meetings int
	over     time.Time // the last bundle
}

// contendedFor is how many bundles a meeting with another broker is remembered.
const contendedFor = 32

// contendedLinger is how long a shard that meets other brokers gathers after a
// bundle. Each of their bundles holds the lanes, so a small one is as long in the
// way as a large one, and the requests that were answered come back meanwhile.
const contendedLinger = 5 * time.Millisecond

// linger is how long the next bundle should still gather: not at all while nobody
// else writes to these lanes, or when enough waits already.
func (s *shard) linger() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meetings == 0 || len(s.ready) == 0 || s.much() {
		return 0
	}
	return time.Until(s.over.Add(contendedLinger))
}

// ended notes that a bundle is over.
func (s *shard) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = time.Now()
}

// met notes whether another transaction held a lane of a bundle.
func (s *shard) met(held bool) {
	if !held {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.meetings = contendedFor
}

// contended says that others write to these lanes, and counts down.
func (s *shard) contended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meetings == 0 {
		return false
	}
	s.meetings--
	return true
}

// add puts a part behind those that wait for its lane.
func (s *shard) add(p *Part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[p.Lane]
	if l == nil {
		l = &lane{Lane: p.Lane}
		s.lanes[p.Lane] = l
	}
	l.waiting = append(l.waiting, p)
	l.bytes += p.bytes
	if l.inFlight {
		return
	}
	s.bytes += p.bytes
	if len(l.waiting) == 1 {
		s.ready = append(s.ready, l)
	}
}

// withdraw takes a part back that is not in flight.
func (s *shard) withdraw(p *Part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[p.Lane]
	if l == nil {
		return false
	}
	i := slices.Index(l.waiting, p)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.bytes -= p.bytes
	if !l.inFlight {
		s.bytes -= p.bytes
	}
	if len(l.waiting) == 0 && !l.inFlight {
		s.ready = slices.DeleteFunc(s.ready, func(r *lane) bool { return r == l })
		delete(s.lanes, l.Lane)
	}
	return true
}

// parallelBytes or parallelLanes have to wait before a shard writes one more bundle
// beside others. Below them the processor time of a bundle is its fixed cost, and
// what waits is better off in the next one (measured, messages of 256 bytes, one
// per request, 64 clients: 34 us of the server's time per message against 47 with
// two bundles at once); above them packing and writing should overlap.
const (
	parallelBytes = 64 << 10
	parallelLanes = 32
)

// much says that enough waits for a bundle of its own.
func (s *shard) much() bool { return s.bytes >= parallelBytes || len(s.ready) >= parallelLanes }

// begin counts one more bundle, if there is work and room for it. With beside it
// does not matter how little waits.
func (s *shard) begin(most int, beside bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 || s.bundles >= most || s.bundles > 0 && !s.much() && !beside {
		return false
	}
	s.bundles++
	return true
}

// retry says whether there still is work for a bundle that found no slot.
func (s *shard) retry() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		s.bundles--
		return false
	}
	return true
}

// take moves ready lanes into a bundle. No lane means that the bundle is over.
func (s *shard) take(most int) []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, 0
	var bundle []*flight
	for n < len(s.ready) && n < most {
		l := s.ready[n]
		if n > 0 && size+l.waiting[0].bytes > MaxBundleBytes {
			break
		}
		s.bytes -= l.bytes
		fl := l.depart(MaxBundleBytes - size)
		size += fl.bytes
		bundle = append(bundle, fl)
		n++
	}
	s.ready = slices.Delete(s.ready, 0, n)
	if n == 0 {
		s.bundles--
	}
	return bundle
}

// depart takes parts in order while they fit, at least one.
func (l *lane) depart(room int) *flight {
	fl := &flight{lane: l, minted: true, open: 1}
	fl.root = fl
	n, messages := 0, 0
	for n < len(l.waiting) {
		p := l.waiting[n]
		if n > 0 && (fl.bytes+p.bytes > room || messages+len(p.Messages) > MaxSegmentMessages) {
			break
		}
		fl.bytes += p.bytes
		messages += len(p.Messages)
		fl.minted = fl.minted && p.Minted
		n++
	}
	fl.parts = slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	l.bytes -= fl.bytes
	l.inFlight = true
	return fl
}

// land ends flights: their lanes are ready again, or idle and forgotten.
func (s *shard) land(flights []*flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fl := range flights {
		l := fl.lane
		l.inFlight = false
		if len(l.waiting) == 0 {
			delete(s.lanes, l.Lane)
			continue
		}
		s.ready = append(s.ready, l)
		s.bytes += l.bytes
	}
}

// laneHash stands for the names of a lane. Two lanes of one hash would only be
// sent with the wrong id, which the database notices.
type laneHash uint64

func (f *Fuser) hash(l Lane) laneHash { return laneHash(maphash.Comparable(f.seed, l)) }

// known is the id of a lane as far as this broker has seen it, else uuid.Nil.
func (f *Fuser) known(l Lane) uuid.UUID {
	id, _ := f.ids.Get(f.hash(l))
	return id
}
