package hotlist

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// key names a queue.
type key struct {
	tenant uuid.UUID
	queue  string
}

// List is the hot list of one broker. It is safe for concurrent use; a nil List
// remembers nothing. Run has to be running for folded wakes, the wheel and the
// walks.
type List struct {
	cfg     Config
	deps    Deps
	limits  limits
	start   time.Time
	seed    maphash.Seed
	metrics *metrics
	atlas   atlas
	buffers sync.Pool // of *[]taken
	tally   tally

	mu     sync.RWMutex
	queues map[key]*queue
	serial map[uint32]*queue
	last   uint32 // serial number given out last

	pulse chan struct{} // the pulse has something to do soon
	floor chan struct{} // a ring or the settings of a queue are due

	// soon guards what the pulse looks after.
	soon  sync.Mutex
	armed []*ring  // with something on the wheel
	dirty []*queue // with folded wakes

	planned atomic.Int64 // when the pulse beats next; 0: not at all
}

// New builds an empty List. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*List, error) {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	l := &List{
		cfg: cfg.withDefaults(), deps: deps, limits: limits{PageSize, MaxPages, MaxLanes}, start: deps.Now(), seed: maphash.MakeSeed(),
		queues: make(map[key]*queue), serial: make(map[uint32]*queue),
		pulse: make(chan struct{}, 1), floor: make(chan struct{}, 1),
	}
	l.buffers.New = func() any { return new([]taken) }
	var err error
	if l.metrics, err = newMetrics(deps.Meter, l); err != nil {
		return nil, fmt.Errorf("create hot list metrics: %w", err)
	}
	return l, nil
}

// now is the time since the list began, never 0.
func (l *List) now() int64 { return int64(l.deps.Now().Sub(l.start)) + 1 }

func (l *List) queue(tenant uuid.UUID, name string) *queue {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.queues[key{tenant, name}]
}

// all returns the queues of this moment.
func (l *List) all() []*queue {
	l.mu.RLock()
	defer l.mu.RUnlock()
	qs := make([]*queue, 0, len(l.queues))
	for _, q := range l.queues {
		qs = append(qs, q)
	}
	return qs
}

// rings returns the rings of this moment.
func (l *List) rings() []*ring {
	var rs []*ring
	for _, q := range l.all() {
		rs = q.appendRings(rs)
	}
	return rs
}

// Pushed marks a lane in every group after a push of this broker. The first one
// after a pause wakes at once, those that follow share a wake per WakeTick.
func (l *List) Pushed(tenant uuid.UUID, queue, partition string, count int) {
	if l == nil {
		return
	}
	q := l.queue(tenant, queue)
	if partition == "" || q == nil || !q.mark(partition, mark{kind: news, count: frames(count), now: l.now(), o: q.options()}) {
		l.Mark(tenant, queue, partition, count)
		return
	}
	q.ring(partition)
}

// Mark marks a lane in every group and wakes at once. An empty partition says that
// the lane is not known: the rings of the queue are due for a walk.
func (l *List) Mark(tenant uuid.UUID, queue, partition string, count int) {
	if l == nil {
		return
	}
	if q := l.queue(tenant, queue); q != nil {
		if partition == "" {
			q.due()
		} else {
			q.mark(partition, mark{kind: news, count: frames(count), now: l.now(), o: q.options()})
		}
	}
	l.deps.Waker.Wake(tenant, queue, partition)
}

// MarkGroup marks a lane in one group whose cursor moved back, or whose lease
// ended with something left. With an empty partition all cursors of the group have
// moved: its ring is due for a walk.
func (l *List) MarkGroup(tenant uuid.UUID, queue, partition, group string) {
	if l == nil {
		return
	}
	if q := l.queue(tenant, queue); q != nil {
		if partition == "" {
			q.turned(group)
		} else {
			q.markGroup(partition, group, mark{kind: moved, now: l.now(), o: q.options()})
		}
	}
	l.deps.Waker.Wake(tenant, queue, partition)
}

// Promote acts on the end of a lease whose whole batch was settled.
func (l *List) Promote(partition uuid.UUID, group string) {
	if l == nil {
		return
	}
	var few [4]spot
	for _, p := range l.atlas.find(partition, few[:0]) {
		l.mu.RLock()
		q := l.serial[p.queue]
		l.mu.RUnlock()
		if q != nil {
			q.promote(p.lane, partition, group)
		}
	}
}

// Age returns how long the oldest ready lane of a group has been waiting, and how
// many are ready.
func (l *List) Age(tenant uuid.UUID, queue, group string) (oldestReady time.Duration, ready int) {
	if l == nil {
		return 0, 0
	}
	q := l.queue(tenant, queue)
	if q == nil {
		return 0, 0
	}
	r := q.find(group)
	if r == nil {
		return 0, 0
	}
	if ready = int(r.ready.Load()); ready == 0 {
		return 0, 0 // asked at every look, so without a lock
	}
	return r.age(l.now()), ready
}

// News counts the messages that were announced to a group, from some time on; ok
// says whether it has a ring. Two counts tell how many came between them, also
// those that somebody has taken.
func (l *List) News(tenant uuid.UUID, queue, group string) (n int64, ok bool) {
	if l == nil {
		return 0, false
	}
	q := l.queue(tenant, queue)
	if q == nil {
		return 0, false
	}
	r := q.find(group)
	if r == nil {
		return 0, false
	}
	return r.news.Load(), true
}

// Oldest is Age over all rings that somebody pops; what nobody wants says nothing
// about how well those who ask are served.
func (l *List) Oldest() (oldestReady time.Duration, ready int) {
	if l == nil {
		return 0, 0
	}
	now := l.now()
	for _, r := range l.rings() {
		if n := int(r.ready.Load()); n > 0 && r.attended(now) {
			ready += n
			oldestReady = max(oldestReady, r.age(now))
		}
	}
	return oldestReady, ready
}

// DropQueue forgets a queue.
func (l *List) DropQueue(tenant uuid.UUID, queue string) {
	if l == nil {
		return
	}
	l.drop(key{tenant, queue}, nil)
}

// drop forgets a queue if it is still the one meant and may (nil: must) go.
func (l *List) drop(k key, may func(q *queue) bool) {
	l.mu.Lock()
	q := l.queues[k]
	if q == nil || may != nil && !may(q) {
		l.mu.Unlock()
		return
	}
	delete(l.queues, k)
	delete(l.serial, q.serial)
	l.mu.Unlock()
	ids := q.drop()
	for lane := range ids.n {
		if id := *ids.at(lane); id != uuid.Nil {
			l.atlas.remove(id, q.serial, lane)
		}
	}
}

// DropGroup forgets a group of a queue, or with an empty queue of the tenant.
func (l *List) DropGroup(tenant uuid.UUID, queue, group string) {
	if l == nil {
		return
	}
	for _, q := range l.all() {
		if q.tenant == tenant && (queue == "" || q.queue == queue) {
			q.dropGroup(group)
		}
	}
}

// Changed says that the configuration of a queue has changed: until it is read
// again nothing is deferred here, and SQL decides.
func (l *List) Changed(tenant uuid.UUID, queue string) {
	if l == nil {
		return
	}
	if q := l.queue(tenant, queue); q != nil {
		q.distrust()
		kick(l.floor)
	}
}

// ensure returns the ring of a group, made and registered if need be.
func (l *List) ensure(tenant uuid.UUID, name, group string) *ring {
	k := key{tenant, name}
	q := l.queue(tenant, name)
	if q != nil {
		if r := q.find(group); r != nil {
			return r
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q = l.queues[k]; q == nil {
		k.queue = strings.Clone(name)
		for l.last++; l.last == 0 || l.serial[l.last] != nil; l.last++ {
			continue // wrapped around
		}
		q = newQueue(l, k, l.last)
		l.queues[k], l.serial[q.serial] = q, q
	}
	return q.ensure(group)
}

func frames(count int) uint32 { return uint32(max(0, min(count, 1<<31))) }

// kick leaves a token in a channel of one.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
