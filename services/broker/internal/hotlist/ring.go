package hotlist

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// ring is what one group has before it in one queue.
type ring struct {
	queue *queue
	group string
	batch uint32 // marks that end a window
	subs  []sub
	walk  walk

	ready   atomic.Int64  // slots that are ready
	news    atomic.Int64  // messages announced
	waste   atomic.Int64  // share of claims for which others were quicker, of wasteAll
	turn    atomic.Uint32 // shard the next check-out begins with
	asked   atomic.Int64  // last check-out
	hungry  atomic.Int64  // last check-out that found nothing
	armed   atomic.Bool   // in the list of rings with something on the wheel
	used    atomic.Bool   // second chance of the idle sweep
	dropped atomic.Bool   // forgotten: nothing done to it counts
}

func newRing(q *queue, group string) *ring {
	r := &ring{queue: q, group: group, batch: uint32(q.list.cfg.WindowBatch), subs: make([]sub, q.list.cfg.Shards)}
	for i := range r.subs {
		r.subs[i].ring, r.subs[i].shard, r.subs[i].head, r.subs[i].tail = r, int32(i), none, none
	}
	var h maphash.Hash
	h.SetSeed(q.list.seed)
	_, _ = h.Write(q.tenant[:])
	_, _ = h.WriteString(q.queue + "\x1f" + group)
	r.walk.phase = int64(h.Sum64() % uint64(max(q.list.cfg.Reseed/5, phaseSpread)))
	r.used.Store(true)
	r.hungry.Store(q.list.now()) // somebody asks, or there would be no ring
	return r
}

// sub returns the shard of a lane and its place there.
func (r *ring) sub(lane int32) (*sub, int32) {
	n := int32(len(r.subs))
	return &r.subs[lane%n], lane / n
}

// lane is the reverse of ring.sub.
func (s *sub) lane(i int32) int32 { return i*int32(len(s.ring.subs)) + s.shard }

// mark marks a lane and reports whether that made it ready.
func (r *ring) mark(lane int32, m mark) bool {
	if m.kind == news {
		r.news.Add(int64(m.count))
	}
	s, i := r.sub(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.slot(i).state
	if was == idle {
		m.after = r.patience(lane)
	}
	s.mark(i, m)
	return was != ready && s.slots.at(i).state == ready
}

// promote is sub.promote under the lock; it reports whether the lane became ready.
func (r *ring) promote(lane int32, now int64, o *settings) bool {
	s, i := r.sub(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.slot(i).state
	s.promote(i, now, r.patience(lane), o)
	return was != ready && s.slots.at(i).state == ready
}

// attended says whether anybody has popped lately.
func (r *ring) attended(now int64) bool {
	at := r.asked.Load()
	return at != 0 && now-at <= int64(max(r.queue.list.cfg.Reseed, r.queue.list.cfg.Attention))
}

// awaited says whether a pop that found nothing is taken to be still waiting.
func (r *ring) awaited(now int64) bool {
	at := r.hungry.Load()
	return at != 0 && now-at <= int64(r.queue.list.cfg.Attention)
}

// age is the wait of the oldest ready lane.
func (r *ring) age(now int64) time.Duration {
	oldest := now
	for i := range r.subs {
		s := &r.subs[i]
		s.mu.Lock()
		if s.head != none {
			oldest = min(oldest, s.slots.at(s.head).at)
		}
		s.mu.Unlock()
	}
	return time.Duration(now - oldest)
}

// counts adds up the slots by state.
func (r *ring) counts() (n [states]int) {
	for i := range r.subs {
		s := &r.subs[i]
		s.mu.Lock()
		for st := ready; st < states; st++ {
			n[st] += s.count[st]
		}
		s.mu.Unlock()
	}
	return n
}

// busy says whether any slot is not idle.
func (r *ring) busy() bool {
	n := r.counts()
	return n[ready]+n[wheel]+n[inflight] > 0
}

// turnWheel makes ready what is due and returns when the wheel is due next
// (never: it is empty), noting up to wakeMax lanes.
func (r *ring) turnWheel(now int64, lanes []int32) (next int64, due []int32) {
	next = never
	for shard := range r.subs {
		s := &r.subs[shard]
		s.mu.Lock()
		s.drain(now, func(i int32) {
			if len(lanes) < wakeMax {
				lanes = append(lanes, s.lane(i))
			}
		})
		if len(s.heap) > 0 {
			next = min(next, s.heap[0].due)
		}
		s.mu.Unlock()
	}
	return next, lanes
}
