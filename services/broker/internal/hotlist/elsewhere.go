package hotlist

import (
	"hash/fnv"

	"github.com/google/uuid"
)

// Taking is what a claim took from a lane of a group.
type Taking struct {
	Tenant                  uuid.UUID
	Queue, Partition, Group string
	Count                   int  // of messages
	Emptied                 bool // it reached the lane's last offset
	Leased                  bool // the lane is leased now
}

// announce tells the other brokers what a claim took.
func (c *Checkout) announce(verdicts []Verdict) {
	q := c.ring.queue
	if q.list.deps.Peers == nil {
		return
	}
	for i := range verdicts {
		v := &verdicts[i]
		if v.Kind > TookAutoAck || v.Count <= 0 {
			continue
		}
		q.list.deps.Peers.Taken(Taking{
			Tenant: q.tenant, Queue: q.queue, Partition: v.Partition, Group: c.ring.group,
			Count: v.Count, Emptied: v.BatchEnd >= v.LastOffset, Leased: v.Kind == Took,
		})
	}
}

// Taken notes what a claim of another broker took. It spares the claims that would
// come back with nothing: while the lease lasts, and after it when there is nothing
// more.
func (l *List) Taken(t Taking) {
	if l == nil {
		return
	}
	q := l.queue(t.Tenant, t.Queue)
	if q == nil {
		return
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	r := q.findLocked(t.Group)
	lane, ok := q.table.lookup(t.Partition)
	if r == nil || !ok {
		return
	}
	s, i := r.sub(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere(i, &t, l.now(), q.options())
}

// elsewhere is Taken for one slot. Every message is announced once and taken once,
// so when all of the marks were taken none of them means anything any more; rows
// and moved cursors count nothing, and stay. With a deferral marks mean more than
// that, and a lane that is checked out hears from its own claim.
func (s *sub) elsewhere(i int32, t *Taking, now int64, o *settings) {
	x := s.slot(i)
	if o.defers() || x.state == idle || x.state == inflight {
		return
	}
	x.marks -= min(x.marks, frames(t.Count))
	if x.marks == 0 && !x.is(listed) {
		x.flags &^= fresh
	}
	x.flags &^= emptied | held
	if t.Emptied {
		x.flags |= emptied
	}
	switch {
	case t.Leased:
		s.park(i, now+int64(Elsewhere), leased)
	case !x.is(leased) && x.is(emptied) && !x.is(fresh):
		s.clear(i)
	}
}

const (
	wasteAll   = 1024
	wasteGain  = 16 // one in so many of the rest is added by a claim that was too late
	wasteDecay = 64 // one in so many is taken off by one that was not
	// wasteMuch is the share above which the lanes are divided. It is reached when
	// about three claims in a hundred are too late: alone, a broker is hardly ever.
	wasteMuch = 128
)

// rivalry notes how often others were quicker. That two claims at once are counted
// as one is no matter.
func (r *ring) rivalry(verdicts []Verdict) {
	for i := range verdicts {
		w := r.waste.Load()
		if verdicts[i].Kind <= TookAutoAck {
			r.waste.Store(w - w/wasteDecay)
		} else {
			r.waste.Store(w + (wasteAll-w)/wasteGain)
		}
	}
}

// patience is how long a lane is left to other brokers: not at all unless they are
// in each other's way. Without it all of them would claim each lane as soon as it
// is ready, and all but one in vain. The lock of the queue is held.
func (r *ring) patience(lane int32) int64 {
	peers := r.queue.list.deps.Peers
	if peers == nil || r.waste.Load() < wasteMuch {
		return 0
	}
	// Brokers have to agree about the number.
	h := fnv.New64a()
	for _, name := range [...]string{r.queue.queue, r.group, r.queue.table.name(lane)} {
		_, _ = h.Write([]byte(name)) // never fails
	}
	return int64(peers.Rank(h.Sum64())) * int64(Yield)
}
