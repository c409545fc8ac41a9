package hotlist

import (
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
)

// State says what a check-out came to.
type State int

// The states of a check-out.
const (
	// Unknown: no ring. Pop by SQL, which settles the first contact, and Reseed.
	Unknown State = iota
	// Cold: nothing is known of the queue, or not enough. Reseed first.
	Cold
	// Empty: nothing is ready.
	Empty
	// Served: there are candidates.
	Served
)

// String returns the name of the state.
func (s State) String() string { return [...]string{"unknown", "cold", "empty", "served"}[s] }

// Kind is what became of a candidate.
type Kind int

// The verdicts. A candidate that the claim did not come to has none.
const (
	// Took: messages were leased.
	Took Kind = iota
	// TookAutoAck: messages were delivered and acknowledged.
	TookAutoAck
	// Nothing: neither messages nor a lease of somebody else.
	Nothing
	// Leased until Verdict.Until by somebody else, or hidden until then.
	Leased
	// Locked: another transaction held the row.
	Locked
)

// Verdict is what a claim says of one candidate.
type Verdict struct {
	Partition   string
	PartitionID uuid.UUID // uuid.Nil when it is not known
	Kind        Kind
	Until       time.Time // Took, Leased
	// BatchEnd is the last offset served and LastOffset the last one there was
	// (Took and TookAutoAck). They decide whether the lane has more: both matter.
	BatchEnd, LastOffset int64
	Count                int // of messages taken
}

// Checkout are the lanes that one pop has in hand. It belongs to one goroutine.
// Its drop guard is Abandon, which does nothing after Return.
type Checkout struct {
	ring  *ring
	names []string
	skip  bool
	taken *[]taken // nil once settled
}

// taken is what a slot was when it was checked out.
type taken struct {
	since int64
	first int64
	lane  int32
	marks uint32
	epoch uint16
	fresh flags // fresh and listed, or nothing
	judge int16 // number of its verdict, none
}

// Checkout takes up to k ready lanes, stopping early once their marks cover batch.
// There is a Checkout only when the state is Served.
func (l *List) Checkout(tenant uuid.UUID, queue, group string, k, batch int) (*Checkout, State) {
	if l == nil {
		return nil, Unknown
	}
	q := l.queue(tenant, queue)
	if q == nil {
		return nil, Unknown
	}
	r := q.find(group)
	if r == nil {
		return nil, Unknown
	}
	now := l.now()
	r.asked.Store(now)
	r.used.Store(true)
	q.used.Store(true)
	if r.ready.Load() == 0 && !r.armed.Load() {
		return nil, r.fruitless(now)
	}
	c := &Checkout{ring: r, taken: l.buffers.Get().(*[]taken)}
	c.collect(max(1, k), max(1, batch), now)
	if len(*c.taken) == 0 {
		c.settle()
		return nil, r.fruitless(now)
	}
	c.names = make([]string, len(*c.taken))
	q.mu.RLock()
	defer q.mu.RUnlock()
	if r.dropped.Load() {
		c.settle()
		return nil, Unknown
	}
	for i := range *c.taken {
		c.names[i] = q.table.name((*c.taken)[i].lane)
	}
	return c, Served
}

// fruitless says what a check-out that found nothing should do.
func (r *ring) fruitless(now int64) State {
	r.hungry.Store(now)
	if r.walk.cold(now, r.queue.list.cfg.Reseed) {
		return Cold
	}
	return Empty
}

// collect takes lanes from the shards in turn, a few of each in every round.
func (c *Checkout) collect(k, batch int, now int64) {
	r := c.ring
	n := len(r.subs)
	o := r.queue.options()
	begin := int(r.turn.Add(1))
	marks := 0
	for round, found := 0, true; found && len(*c.taken) < k && marks < batch; round++ {
		found = false
		for i := 0; i < n && len(*c.taken) < k && marks < batch; i++ {
			s := &r.subs[(begin+i)%n]
			s.mu.Lock()
			if round == 0 {
				s.drain(now, nil)
			}
			for range max(1, k/n) {
				m, ok := s.take(c, now, o)
				if !ok {
					break
				}
				found = true
				if marks += m; len(*c.taken) >= k || marks >= batch {
					break
				}
			}
			s.mu.Unlock()
		}
	}
}

// take checks out the oldest ready lane of a shard, unless its window is somebody
// else's business than that of the lanes already taken. It returns its marks.
func (s *sub) take(c *Checkout, now int64, o *settings) (marks int, ok bool) {
	i := s.head
	if i == none {
		return 0, false
	}
	free := s.released(i, now, o)
	if len(*c.taken) > 0 && free != c.skip {
		return 0, false
	}
	c.skip = free
	return int(min(s.checkOut(c, i, now, o), 1<<30)), true
}

// checkOut moves a lane to those in hand. It returns its marks.
func (s *sub) checkOut(c *Checkout, i int32, now int64, o *settings) (marks uint32) {
	x := s.slots.at(i)
	t := taken{since: x.at, lane: s.lane(i), marks: x.marks, fresh: x.flags & (fresh | listed), judge: none}
	s.leave(x)
	s.enter(x, inflight, now)
	x.epoch++
	x.marks = 0
	x.flags &^= fresh | listed | promoted
	t.epoch = x.epoch
	if seen := s.times(i, o); seen != nil {
		t.first, seen.first = seen.first, 0
	}
	*c.taken = append(*c.taken, t)
	return t.marks
}

// Partitions are the names of the candidates, in the order in which to try them.
func (c *Checkout) Partitions() []string {
	if c == nil {
		return nil
	}
	return c.names
}

// SkipWindow says that the ring has applied the windowBuffer of every candidate.
func (c *Checkout) SkipWindow() bool { return c != nil && c.skip }

// Return checks the candidates in. What no verdict names becomes ready again.
// Only the first call counts.
func (c *Checkout) Return(verdicts []Verdict) {
	if c == nil || c.taken == nil {
		return
	}
	defer c.settle()
	c.judge(verdicts)
	c.learn(verdicts)
	c.ring.rivalry(verdicts)
	c.announce(verdicts)
	served := false
	for i := range verdicts {
		served = served || verdicts[i].Kind <= TookAutoAck
	}
	if !served {
		c.ring.hungry.Store(c.ring.queue.list.now())
		c.ring.queue.list.metrics.emptyClaim()
	}
	ts := *c.taken
	for i := len(ts) - 1; i >= 0; i-- { // backwards: restored ones keep their order
		var v *Verdict
		if ts[i].judge != none {
			v = &verdicts[ts[i].judge]
		}
		c.checkIn(&ts[i], i, v, false)
	}
}

// Abandon makes all candidates ready again, behind the others: whatever failed
// may fail again because of them. After Return it does nothing.
func (c *Checkout) Abandon() {
	if c == nil || c.taken == nil {
		return
	}
	defer c.settle()
	for i := range *c.taken {
		c.checkIn(&(*c.taken)[i], i, nil, true)
	}
}

func (c *Checkout) settle() {
	l := c.ring.queue.list
	*c.taken = (*c.taken)[:0]
	l.buffers.Put(c.taken)
	c.taken = nil
}

// judge finds the verdict of every candidate. They mostly come in order.
func (c *Checkout) judge(verdicts []Verdict) {
	at := 0
	for v := range verdicts {
		for range c.names {
			i := at
			if at++; at == len(c.names) {
				at = 0
			}
			if c.names[i] == verdicts[v].Partition {
				(*c.taken)[i].judge = int16(v)
				break
			}
		}
	}
}

// learn notes the partition ids that the verdicts bring.
func (c *Checkout) learn(verdicts []Verdict) {
	var few [8]lesson
	lessons := few[:0]
	for i := range *c.taken {
		t := &(*c.taken)[i]
		if t.judge != none && verdicts[t.judge].PartitionID != uuid.Nil {
			lessons = append(lessons, lesson{t.lane, c.names[i], verdicts[t.judge].PartitionID})
		}
	}
	if len(lessons) > 0 && !c.ring.dropped.Load() {
		c.ring.queue.learn(lessons)
	}
}

// checkIn applies a verdict, or none, and wakes when the lane is ready again.
func (c *Checkout) checkIn(t *taken, n int, v *Verdict, abandoned bool) {
	r := c.ring
	if r.dropped.Load() {
		return
	}
	l, o := r.queue.list, r.queue.options()
	now := l.now()
	s, i := r.sub(t.lane)
	s.mu.Lock()
	x := s.slots.at(i)
	if x.state != inflight || x.epoch != t.epoch {
		s.mu.Unlock()
		return // given up meanwhile
	}
	switch {
	case abandoned:
		s.back(i, t, o)
		s.append(i, now)
	case v == nil:
		s.back(i, t, o)
		s.restore(i, t.since)
	default:
		s.apply(i, t, v, verdictContext{now: now, o: o, skipped: c.skip, until: v.Until.Sub(l.deps.Now())})
	}
	again := x.state == ready
	s.mu.Unlock()
	if again {
		r.queue.ring(c.names[n])
	}
}

// verdictContext is what a verdict is applied under.
type verdictContext struct {
	now     int64
	o       *settings
	skipped bool          // the ring had applied the window
	until   time.Duration // how long the lease lasts from now
}

// back returns to a slot what the check-out took along.
func (s *sub) back(i int32, t *taken, o *settings) {
	x := s.slots.at(i)
	x.marks = add(x.marks, t.marks)
	x.flags |= t.fresh
	if seen := s.times(i, o); seen != nil && t.first != 0 {
		seen.first = t.first
	}
}

// apply moves a checked-out slot where its verdict wants it.
func (s *sub) apply(i int32, t *taken, v *Verdict, vc verdictContext) {
	switch v.Kind {
	case Took, TookAutoAck:
		s.took(i, v, vc)
	case Nothing:
		s.nothing(i, t, vc)
	case Leased:
		s.kept(i, t, vc, min(max(vc.until, 0)+Grace, LeaseParkMax))
	case Locked:
		s.kept(i, t, vc, LockPark+rand.N(LockJitter))
	}
}

// took is the check-in of a lane that gave messages.
func (s *sub) took(i int32, v *Verdict, vc verdictContext) {
	x := s.slots.at(i)
	again := x.is(promoted)
	x.flags &^= emptied | held | promoted
	if v.BatchEnd >= v.LastOffset {
		x.flags |= emptied
	} else if vc.skipped {
		x.flags |= held
	}
	if v.Kind == Took {
		// A lease that ended meanwhile need not be this one, so even then an
		// emptied lane is looked at again.
		if again && (!x.is(emptied) || x.is(fresh)) {
			s.append(i, vc.now)
			return
		}
		pause := LeaseParkMax
		if !v.Until.IsZero() {
			pause = within(vc.until, WheelTick, LeaseParkMax)
		}
		s.park(i, vc.now+int64(pause), leased)
		return
	}
	switch {
	case !x.is(emptied):
		s.append(i, vc.now)
	case x.is(fresh):
		s.place(i, vc.now, 0, vc.o)
	default:
		s.clear(i)
	}
}

// nothing is the check-in of a lane that had nothing. The marks it was taken with
// are answered by that; only newer ones count. While a deferral may hide something
// it is looked at again.
func (s *sub) nothing(i int32, t *taken, vc verdictContext) {
	x := s.slots.at(i)
	x.flags &^= emptied | held | promoted
	if x.is(fresh) {
		s.place(i, vc.now, 0, vc.o)
		return
	}
	if seen := s.times(i, vc.o); seen != nil {
		if left := vc.o.clear(seen.last) - vc.now; left > 0 {
			s.back(i, t, vc.o)
			s.park(i, vc.now+int64(within(time.Duration(left), revisitMin, LeaseParkMax)), 0)
			return
		}
	}
	s.clear(i)
}

// kept is the check-in of a lane that somebody else has.
func (s *sub) kept(i int32, t *taken, vc verdictContext, pause time.Duration) {
	x := s.slots.at(i)
	s.back(i, t, vc.o)
	if x.is(promoted) {
		x.flags &^= promoted
		s.append(i, vc.now)
		return
	}
	s.park(i, vc.now+int64(pause), leased)
}
