package soak

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// book is what one group may and did receive of a queue, lane by lane. Messages of a
// lane are numbered from 1.
type book struct {
	name  string // in the words of a problem
	lease time.Duration
	lanes []lane
	tally *tally
	// delivered counts messages once.
	delivered, acknowledged *atomic.Int64
}

// lane is the state of one of them.
type lane struct {
	mu        sync.Mutex
	stored    int // the highest number whose push was answered
	delivered int // the highest number that was delivered
	commits   []commit
	last      *delivery
}

// commit is an acknowledgement that was answered with success.
type commit struct {
	upTo int
	at   time.Time
}

// delivery is the part of a pop's answer that concerns one lane.
type delivery struct {
	lane    int
	first   int
	upTo    int
	size    int
	asked   time.Time // when the pop was sent: its lease began later
	unknown bool      // an acknowledgement of it was sent and not answered
}

// memory is for how long commits are told apart: longer than any pop is under way.
const memory = 2 * time.Minute

func newBook(name string, cfg *Config, t *tally) *book {
	return &book{name: name, lease: cfg.Lease, lanes: make([]lane, cfg.Lanes), tally: t, delivered: &t.delivered, acknowledged: &t.acknowledged}
}

// store notes that everything up to a number is there.
func (b *book) store(l, upTo int) {
	b.lanes[l].mu.Lock()
	defer b.lanes[l].mu.Unlock()
	b.lanes[l].stored = upTo
}

// deliver judges a delivery, in the order of the messages.
func (b *book) deliver(l int, numbers []int, asked, arrived time.Time) *delivery {
	d := &delivery{lane: l, first: numbers[0], upTo: slices.Max(numbers), size: len(numbers), asked: asked}
	s := &b.lanes[l]
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range numbers {
		if n != d.first+i {
			b.tally.disordered(1, "%s: a delivery of lane %d from %d on has %d in place %d", b.name, l, d.first, n, i)
			break
		}
	}
	if d.first > s.delivered+1 {
		b.tally.disordered(1, "%s: lane %d goes on with %d after %d", b.name, l, d.first, s.delivered)
	}
	if d.first <= s.delivered {
		b.judgeRepeat(s, d, min(d.upTo, s.delivered)-d.first+1, arrived)
	}
	b.delivered.Add(int64(max(d.upTo-s.delivered, 0)))
	s.delivered = max(s.delivered, d.upTo)
	s.last = d
	return d
}

// judgeRepeat decides whether the first n messages might come again.
func (b *book) judgeRepeat(s *lane, d *delivery, n int, arrived time.Time) {
	before := s.committed(d.asked)
	held := arrived.Sub(s.last.asked)
	switch {
	case d.first <= before:
		b.tally.duplicated(n, "%s: lane %d delivers %d again, although %d was acknowledged before", b.name, d.lane, d.first, before)
	case held < b.lease && !s.last.unknown:
		b.tally.duplicated(n, "%s: lane %d delivers %d again after %v, within the lease of %v", b.name, d.lane, d.first, held, b.lease)
	default:
		b.tally.redelivered.Add(int64(n))
	}
}

// committed is what was acknowledged, and answered, before a time.
func (s *lane) committed(before time.Time) int {
	for i := len(s.commits) - 1; i >= 0; i-- {
		if s.commits[i].at.Before(before) {
			return s.commits[i].upTo
		}
	}
	return 0
}

// done is what was acknowledged, and answered.
func (s *lane) done() int {
	if n := len(s.commits); n > 0 {
		return s.commits[n-1].upTo
	}
	return 0
}

// lose notes that an acknowledgement of a delivery may have happened or not.
func (b *book) lose(d *delivery) {
	b.lanes[d.lane].mu.Lock()
	defer b.lanes[d.lane].mu.Unlock()
	d.unknown = true
}

// acknowledge notes that everything up to the end of a delivery is done with.
func (b *book) acknowledge(d *delivery) {
	s := &b.lanes[d.lane]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if done := s.done(); done < d.upTo {
		b.acknowledged.Add(int64(d.upTo - done))
		s.commits = append(s.commits, commit{d.upTo, now})
	}
	old := 0 // the newest that every pop under way has been asked after
	for old+1 < len(s.commits) && now.Sub(s.commits[old+1].at) > memory {
		old++
	}
	s.commits = slices.Delete(s.commits, 0, old)
}

// rest is what is not done with yet.
func (b *book) rest() (messages int) {
	for i := range b.lanes {
		s := &b.lanes[i]
		s.mu.Lock()
		messages += max(s.stored-s.done(), 0)
		s.mu.Unlock()
	}
	return messages
}

// close judges the end: what was stored and never delivered is lost, and what was
// delivered must have been stored. A number that is still being sent may be either.
func (b *book) close(attempted func(lane int) int) {
	for i := range b.lanes {
		s := &b.lanes[i]
		s.mu.Lock()
		if n := s.stored - s.delivered; n > 0 {
			b.tally.missed(n, "%s: lane %d ends with %d, although %d was stored", b.name, i, s.delivered, s.stored)
		}
		if most := attempted(i); s.delivered > most {
			b.tally.disordered(1, "%s: lane %d delivered %d, although only %d was sent", b.name, i, s.delivered, most)
		}
		s.mu.Unlock()
	}
}

const lanePrefix = "lane-"

func laneName(l int) string { return lanePrefix + strconv.Itoa(l) }
