package collector

import (
	"encoding/binary"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

const (
	shardCount = 16
	// QueuesDefault is how many queues are counted at the same time: at 200 bytes
	// each, 7 MB.
	QueuesDefault = 32768
)

// Counts are figures of a queue, or of the process.
type Counts = store.Counted

// Key names a queue. The zero one names none: it only counts for the process.
type Key struct {
	scope uuid.UUID // the tenant, or the lane if there is no name
	queue string
}

// Queue names a queue; none if the name is empty.
func Queue(tenant uuid.UUID, name string) Key {
	if name == "" {
		return Key{}
	}
	return Key{tenant, name}
}

// Lane names the queue of a lane of which only the id is known. The database finds
// out.
func Lane(id uuid.UUID) Key { return Key{scope: id} }

// Name is that of the queue, empty where only the id of a lane is known.
func (k Key) Name() string { return k.queue }

// Tenant is whose queue it is, where it has a name.
func (k Key) Tenant() uuid.UUID { return k.scope }

func (k *Key) isZero() bool { return k.queue == "" && k.scope == uuid.Nil }

// Counters are the figures of a process since the last flush. They are safe for
// concurrent use; nil counts nothing.
type Counters struct {
	seed        maphash.Seed
	perShard    int
	shards      [shardCount]shard
	deadLetters atomic.Int64
	failures    atomic.Int64
	parked      atomic.Int64
	dropped     atomic.Int64  // counts that were not attributed to their queue
	full        chan struct{} // holds a token once a shard has no room
}

// shard holds a part of the queues, and of what the process has counted.
type shard struct {
	mu     sync.Mutex
	total  Counts // since the last flush
	past   Counts // before it
	queues map[Key]*entry
	_      [64]byte // so that shards do not share a cache line
}

type entry struct {
	counts Counts
	told   Traffic // of counts; below 0 once a flush has taken what was not told
	parked int64   // pops that wait now
}

// NewCounters counts at most so many queues at the same time.
func NewCounters(queues int) *Counters {
	c := &Counters{seed: maphash.MakeSeed(), perShard: max(queues/shardCount, 1), full: make(chan struct{}, 1)}
	for i := range c.shards {
		c.shards[i].queues = make(map[Key]*entry)
	}
	return c
}

// Add counts for a queue and for the process.
func (c *Counters) Add(k Key, n *Counts) {
	if c == nil {
		return
	}
	s := c.shardOf(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Add(n)
	if e := c.entry(s, &k); e != nil {
		e.counts.Add(n)
	}
}

// AddTally counts one request for all the queues that it concerned. The figures of
// the request itself count for each of them, and once for the process. Lanes without
// a name are mostly of one queue: only the first of them counts the request.
func (c *Counters) AddTally(t *Tally, request *Counts) {
	if c == nil {
		return
	}
	if t.count == 0 {
		c.Add(Key{}, request)
		return
	}
	nameless := false
	for i := range t.count {
		p := t.at(i)
		counts := p.key.queue != "" || !nameless
		nameless = nameless || p.key.queue == ""
		s := c.shardOf(&p.key)
		s.mu.Lock()
		s.total.Add(&p.counts)
		if i == 0 {
			s.total.Add(request)
		}
		if e := c.entry(s, &p.key); e != nil {
			e.counts.Add(&p.counts)
			if counts {
				e.counts.Add(request)
			}
		}
		s.mu.Unlock()
	}
}

// Park counts a pop that waits for a queue. It reports whether the queue knows,
// which Unpark has to be told.
func (c *Counters) Park(k Key) (known bool) {
	if c == nil {
		return false
	}
	c.parked.Add(1)
	s := c.shardOf(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := c.entry(s, &k)
	if e != nil {
		e.parked++
	}
	return e != nil
}

// Unpark takes back a Park.
func (c *Counters) Unpark(k Key, known bool) {
	if c == nil {
		return
	}
	c.parked.Add(-1)
	if !known {
		return
	}
	s := c.shardOf(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[k].parked-- // a queue with parked pops is kept
}

// DeadLettered counts a message that was filed as a dead letter.
func (c *Counters) DeadLettered() {
	if c != nil {
		c.deadLetters.Add(1)
	}
}

// DatabaseFailed counts work that the database did not do.
func (c *Counters) DatabaseFailed() {
	if c != nil {
		c.failures.Add(1)
	}
}

func (c *Counters) shardOf(k *Key) *shard {
	h := uint64(binary.BigEndian.Uint32(k.scope[12:])) // ids are random at their end
	if k.queue != "" {
		h = maphash.String(c.seed, k.queue)
	}
	return &c.shards[h%shardCount]
}

// entry is that of a queue, made if there is room. The shard is locked.
func (c *Counters) entry(s *shard, k *Key) *entry {
	if k.isZero() {
		return nil
	}
	if e := s.queues[*k]; e != nil {
		return e
	}
	if len(s.queues) >= c.perShard {
		c.dropped.Add(1)
		select {
		case c.full <- struct{}{}:
		default:
		}
		return nil
	}
	e := &entry{}
	// The name may lie in memory that the next request uses.
	s.queues[Key{k.scope, strings.Clone(k.queue)}] = e
	return e
}

// take moves all that was counted into a flush. A queue of which nothing was
// counted since the last one, and that nobody waits for, is forgotten.
func (c *Counters) take(f *store.MetricsFlush) {
	for i := range c.shards {
		c.shards[i].take(f)
	}
	f.Worker.DeadLetters, f.Worker.DatabaseErrors = c.deadLetters.Swap(0), c.failures.Swap(0)
	f.Worker.Parked = c.parked.Load()
}

// Totals are the figures of the process since it began.
func (c *Counters) Totals() (t Counts) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		t.Add(&s.past)
		t.Add(&s.total)
		s.mu.Unlock()
	}
	return t
}

// Waiting is how many pops wait now for queues of each name, and for all together. More
// wait than the names add up to where queues are too many, or a pop names none.
func (c *Counters) Waiting() (byQueue map[string]int64, all int64) {
	byQueue, all = map[string]int64{}, c.parked.Load()
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for k, e := range s.queues {
			if e.parked > 0 {
				byQueue[k.queue] += e.parked
			}
		}
		s.mu.Unlock()
	}
	return byQueue, all
}

func (s *shard) take(f *store.MetricsFlush) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.Worker.Add(&s.total)
	s.past.Add(&s.total)
	s.total = Counts{}
	for k, e := range s.queues {
		if e.parked == 0 && e.counts == (Counts{}) {
			delete(s.queues, k)
			continue
		}
		f.Queues = append(f.Queues, row(k, e))
		taken := trafficOf(&e.counts)
		e.told.sub(&taken)
		e.counts = Counts{}
	}
}

func row(k Key, e *entry) store.QueueMetrics {
	m := store.QueueMetrics{Counted: e.counts, Parked: e.parked}
	if k.queue == "" {
		m.Partition = &k.scope
	} else {
		m.Tenant, m.Queue = &k.scope, &k.queue
	}
	return m
}
