package popfusion

import (
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// ticket is a pop that waits for its departure. outcome and err are set before
// ready is closed.
type ticket struct {
	claim   Claim
	span    trace.Span // of the request; nil when nobody records it
	alone   bool
	ready   chan struct{}
	outcome Outcome
	err     error
}

func (t *ticket) settle(o Outcome, err error) {
	t.outcome, t.err = o, err
	close(t.ready)
}

// shard is the departure of one group.
type shard struct {
	*Fuser
	key Key

	mu      sync.Mutex
	waiting []*ticket
	flying  bool   // a flight gathers claims, or is under way and not stuck
	flight  uint64 // which one
	last    time.Time
	pace    time.Duration // between departures
	took    time.Duration // by a call, smoothed
	due     *time.Timer   // of the next departure; nil when none is awaited
	missed  int           // flights since one was served
	shunned time.Time     // until then nothing is shared
}

// add has a ticket wait, and departs when it is time.
func (s *shard) add(t *ticket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, t)
	s.depart()
}

// withdraw takes a ticket back that no flight has taken.
func (s *shard) withdraw(t *ticket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, t); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		t.settle(Outcome{}, err)
	}
}

// depart lets go whoever may: one alone, or a flight, at each departure. It is
// called with the lock held, whenever one of its conditions has changed.
func (s *shard) depart() {
	for len(s.waiting) > 0 {
		if s.flying && !s.waiting[0].alone {
			return // landing departs again
		}
		now := time.Now()
		if wait := s.last.Add(s.pace).Sub(now); wait > 0 {
			s.await(wait)
			return
		}
		s.last = now
		if s.waiting[0].alone {
			t := s.waiting[0]
			s.waiting = slices.Delete(s.waiting, 0, 1)
			t.settle(Outcome{}, nil)
			continue
		}
		s.flying = true
		s.flight++
		go s.fly(s.flight)
	}
}

// await has depart called again, when nobody sees to that yet.
func (s *shard) await(wait time.Duration) {
	if s.due != nil {
		s.due.Reset(wait)
		return
	}
	s.due = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.depart()
	})
}

// board takes those who fly, as many as there is room for.
func (s *shard) board() []*ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	var flying []*ticket
	s.waiting = slices.DeleteFunc(s.waiting, func(t *ticket) bool {
		if t.alone || len(flying) == s.cfg.MaxClaims {
			return false
		}
		flying = append(flying, t)
		return true
	})
	return flying
}

// land ends a flight, unless it was stuck and others have started since.
func (s *shard) land(flight uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flight == flight && s.flying {
		s.flying = false
		s.depart()
	}
}

// keepPace learns from a call that delivered took messages of want. What it tells
// of one group at rest is no news of another: a pace is of the group's own calls.
func (s *shard) keepPace(lasted time.Duration, took, want int) {
	if want == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.took == 0 {
		s.took = lasted
	}
	s.took += (lasted - s.took) / 4
	s.pace = 0
	if 2*took < want {
		s.pace = min(paceFactor*s.took, s.cfg.MaxPace)
	}
	s.depart()
}

// flew notes whether a flight was served anything. Several in a row that were not
// mean that the queue holds messages back; single ones, that another broker was
// quicker.
func (s *shard) flew(served bool) {
	s.mu.Lock()
	if s.missed++; served {
		s.missed = 0
	}
	shun := s.missed >= shunAfter
	s.mu.Unlock()
	if shun {
		s.shun()
	}
}

// shun has the group go alone for a while.
func (s *shard) shun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed, s.shunned = 0, time.Now().Add(shunFor)
}
