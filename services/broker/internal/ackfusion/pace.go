package ackfusion

import "time"

// pace keeps a busy shard from committing rows one by one. The consumers to whom a
// flight has handed lanes send their acks at about the same time, and the first of
// them would fly without the others: it waits until they have come, no longer than
// flights take, at most maxGather. A shard whose consumers take their time waits for
// them ever less often.
type pace struct {
	owed int           // acks of consumers that the last flights have served
	took time.Duration // by a flight, smoothed
	rest int           // flights that do not wait
	vain int           // as many did not wait after the last wait in vain; 0: it was not
	all  chan struct{} // closed when nothing is owed any more; nil: nobody asks
}

const (
	// maxGather bounds what a row waits for others, however slow the database is.
	maxGather = 5 * time.Millisecond
	// impatience is how many flights do not wait after several that waited in vain.
	impatience = 16
)

// gather waits for the rows that are about to come.
func (s *shard) gather() {
	s.mu.Lock()
	p := &s.pace
	if p.owed == 0 || p.rest > 0 || len(s.queue) >= s.cfg.MaxRows {
		p.rest = max(p.rest-1, 0)
		s.mu.Unlock()
		return
	}
	all, wait := make(chan struct{}), min(p.took, maxGather)
	p.all = all
	s.mu.Unlock()
	limit := time.NewTimer(wait)
	defer limit.Stop()
	select {
	case <-all:
	case <-limit.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.all == nil {
		p.vain = 0
		return
	}
	p.all, p.owed = nil, 0
	p.vain = min(max(2*p.vain, 1), impatience)
	p.rest = p.vain
}

// came counts a row.
func (p *pace) came() {
	p.owed = max(p.owed-1, 0)
	if p.owed == 0 && p.all != nil {
		close(p.all)
		p.all = nil
	}
}

// landed learns from a flight that has handed lanes on.
func (s *shard) landed(handed int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pace.owed += handed
	if s.pace.took == 0 {
		s.pace.took = took
	}
	s.pace.took += (took - s.pace.took) / 4
}
