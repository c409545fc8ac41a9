package hotlist

import (
	"math"
	"sync"
	"time"
)

// state is where a slot is.
type state uint8

const (
	idle state = iota
	ready
	wheel
	inflight
	states
)

// flags of a slot.
type flags uint8

const (
	// fresh: marked since the check-out, or since the claim that last took.
	fresh flags = 1 << iota
	// emptied: the last claim that took reached the lane's last offset.
	emptied
	// held: what that claim left has waited out its window.
	held
	// leased: on the wheel because of a lease or a row lock.
	leased
	// holding: on the wheel because the queue defers.
	holding
	// promoted: a lease ended while the slot was checked out.
	promoted
	// listed: marked by a row or a moved cursor, which count no messages, since the
	// check-out.
	listed
)

const none = -1 // no slot

// slot is what a ring knows of one lane. It is kept at 24 bytes.
type slot struct {
	at         int64 // ready: since; wheel: due; inflight: since
	prev, next int32 // in the ready list
	marks      uint32
	epoch      uint16 // of check-outs
	state      state
	flags      flags
}

func (x *slot) is(f flags) bool { return x.flags&f != 0 }

// seen is what only queues with a deferral need to know of a lane.
type seen struct {
	first int64 // first mark since the last check-out that took; 0 none
	last  int64 // last mark or row
}

// sub is one shard of a ring. Its lock guards all of it.
type sub struct {
	mu         sync.Mutex
	ring       *ring
	shard      int32
	slots      vector[slot]
	seen       vector[seen]
	head, tail int32 // of the ready list
	count      [states]int
	heap       heap
}

func (s *sub) slot(i int32) *slot {
	s.slots.extend(i + 1)
	return s.slots.at(i)
}

// times returns the deferral times of a lane, nil when its queue has no deferral.
func (s *sub) times(i int32, o *settings) *seen {
	if !o.defers() {
		return nil
	}
	s.seen.extend(i + 1)
	return s.seen.at(i)
}

// leave takes a slot out of its state; what is on the wheel is dropped there when
// it comes up.
func (s *sub) leave(x *slot) {
	s.count[x.state]--
	if x.state == ready {
		s.ring.ready.Add(-1)
		s.unlink(x)
	}
	x.flags &^= leased | holding
}

func (s *sub) enter(x *slot, to state, at int64) {
	x.state, x.at = to, at
	s.count[to]++
}

// append makes a slot ready, behind the others.
func (s *sub) append(i int32, now int64) {
	x := s.slots.at(i)
	s.leave(x)
	s.enter(x, ready, now)
	x.prev, x.next = s.tail, none
	if s.tail == none {
		s.head = i
	} else {
		s.slots.at(s.tail).next = i
	}
	s.tail = i
	s.ring.ready.Add(1)
}

// yield makes a slot ready when the brokers that come before this one have had
// their time.
func (s *sub) yield(i int32, now, after int64) {
	if after > 0 {
		s.park(i, now+after, 0)
		return
	}
	s.append(i, now)
}

// restore makes a slot ready again where it was: before the others.
func (s *sub) restore(i int32, since int64) {
	x := s.slots.at(i)
	s.leave(x)
	s.enter(x, ready, since)
	x.prev, x.next = none, s.head
	if s.head == none {
		s.tail = i
	} else {
		s.slots.at(s.head).prev = i
	}
	s.head = i
	s.ring.ready.Add(1)
}

func (s *sub) unlink(x *slot) {
	if x.prev == none {
		s.head = x.next
	} else {
		s.slots.at(x.prev).next = x.next
	}
	if x.next == none {
		s.tail = x.prev
	} else {
		s.slots.at(x.next).prev = x.prev
	}
}

// park puts a slot on the wheel; why is leased, holding or neither.
func (s *sub) park(i int32, due int64, why flags) {
	x := s.slots.at(i)
	s.leave(x)
	s.enter(x, wheel, due)
	x.flags |= why
	if len(s.heap) > 2*s.count[wheel]+64 {
		s.heap.prune(s.parked)
	}
	s.heap.push(visit{due, i})
	s.ring.arm(due)
}

// parked says whether an entry of the heap is still meant.
func (s *sub) parked(v visit) bool {
	x := s.slots.at(v.lane)
	return x.state == wheel && x.at == v.due
}

// clear forgets everything about a slot but its epoch.
func (s *sub) clear(i int32) {
	x := s.slots.at(i)
	s.leave(x)
	*x = slot{epoch: x.epoch}
	s.enter(x, idle, 0)
	if i < s.seen.n {
		*s.seen.at(i) = seen{}
	}
}

// mark is one sign of work in a lane.
type mark struct {
	kind  kind
	count uint32
	now   int64
	after int64 // how long to leave the lane to other brokers
	o     *settings
}

type kind uint8

const (
	news  kind = iota // something was written
	row               // the database lists the lane
	moved             // the cursor went back, or a lease ended with something left
)

// mark notes a sign of work.
func (s *sub) mark(i int32, m mark) {
	x := s.slot(i)
	before := x.marks
	x.marks = add(x.marks, m.count)
	x.flags |= fresh
	if m.kind != news {
		x.flags |= listed
	}
	if t := s.times(i, m.o); t != nil {
		t.last = m.now
		if m.kind == news && t.first == 0 {
			t.first = m.now
		}
	}
	switch {
	case m.kind == moved:
		s.free(i, m.now)
	case x.state == idle && m.kind == row:
		s.append(i, m.now)
	case x.state == idle:
		s.place(i, m.now, m.after, m.o)
	case x.state == wheel && m.o.windowed() && before < s.ring.batch && x.marks >= s.ring.batch:
		s.append(i, m.now)
	case x.state == inflight && m.kind == row && m.now-x.at > int64(Stranded):
		s.append(i, m.now) // whoever took it will never come back
	}
}

// free makes a lane ready whatever keeps it.
func (s *sub) free(i int32, now int64) {
	x := s.slots.at(i)
	x.flags &^= emptied | held
	switch x.state {
	case idle, wheel:
		s.append(i, now)
	case inflight:
		x.flags |= promoted
	}
}

// place puts a lane that has nothing but fresh marks where the queue's deferral
// wants it. Without a first mark nobody knows how long it has been waiting, so it
// is ready and SQL decides.
func (s *sub) place(i int32, now, after int64, o *settings) {
	x := s.slots.at(i)
	due := int64(math.MinInt64)
	if t := s.times(i, o); t != nil && t.first != 0 {
		switch {
		case o.delay > 0:
			due = t.first + o.delay + int64(Grace)
		case x.marks < s.ring.batch:
			due = t.first + o.window
		}
	}
	if due <= now {
		s.yield(i, now, after)
		return
	}
	s.park(i, due, holding)
}

// released says whether the ring has applied the window of a lane.
func (s *sub) released(i int32, now int64, o *settings) bool {
	if !o.windowed() || !o.trusted(now) {
		return false
	}
	x, t := s.slots.at(i), s.times(i, o)
	return x.is(held) || x.marks >= s.ring.batch || t.first != 0 && t.first+o.window <= now
}

// promote acts on the end of a lease whose batch was settled.
func (s *sub) promote(i int32, now, after int64, o *settings) {
	x := s.slot(i)
	switch {
	case x.state == inflight:
		x.flags |= promoted
	case x.state == ready && x.is(emptied) && !x.is(fresh):
		s.clear(i)
	case x.state != wheel || !x.is(leased):
	case !x.is(emptied):
		s.yield(i, now, after)
	case x.is(fresh):
		s.place(i, now, after, o)
	default:
		s.clear(i)
	}
}

// drain makes ready what is due on the wheel, and hands each lane to note.
func (s *sub) drain(now int64, note func(i int32)) {
	for len(s.heap) > 0 && (s.heap[0].due <= now || !s.parked(s.heap[0])) {
		v := s.heap.pop()
		if !s.parked(v) {
			continue
		}
		s.append(v.lane, now)
		if note != nil {
			note(v.lane)
		}
	}
}

// release makes ready what waits for a deferral that is no longer the queue's.
func (s *sub) release(now int64) {
	for i := range s.slots.n {
		if x := s.slots.at(i); x.state == wheel && !x.is(leased) {
			s.append(i, now)
		}
	}
}

func add(a, b uint32) uint32 {
	if a > math.MaxUint32-b {
		return math.MaxUint32
	}
	return a + b
}

// within keeps a pause between two bounds.
func within(d, low, high time.Duration) time.Duration { return max(low, min(d, high)) }
