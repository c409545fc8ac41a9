package dedup

import (
	"context"
	"hash/maphash"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/queenmq/queen/pkg/logging"
)

const (
	shardCount = 16
	// bytesPerID is what a lane is expected to cost before it is read; sealed ids
	// cost less.
	bytesPerID = 8
	// admitShare is how full the budget may be of lanes that are let in; the rest
	// is room for them to grow.
	admitShare = 0.9
	// idle is how long a lane nobody used is kept against one that needs room.
	idle = 5 * time.Second

	warnEvery = time.Minute
)

// budget is the lanes, and the bytes they are charged for.
type budget struct {
	limit    int64
	used     atomic.Int64
	evicted  atomic.Int64
	admits   sync.Mutex
	seed     maphash.Seed
	shards   [shardCount]shard
	warnings limiter
}

type shard struct {
	mu    sync.Mutex
	lanes *simplelru.LRU[Lane, *entry] // in order of their marks
}

func (b *budget) init(limit int64) error {
	b.limit, b.seed = limit, maphash.MakeSeed()
	for i := range b.shards {
		// The bytes are the bound, not the number.
		l, err := simplelru.NewLRU[Lane, *entry](math.MaxInt, nil)
		if err != nil {
			return err
		}
		b.shards[i].lanes = l
	}
	return nil
}

func (b *budget) shardOf(lane Lane) *shard {
	return &b.shards[maphash.Comparable(b.seed, lane)%shardCount]
}

// find returns the entry of a lane, if there is one.
func (b *budget) find(lane Lane) *entry {
	s := b.shardOf(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _ := s.lanes.Peek(lane)
	return e
}

// peek returns the entry of a lane for a mark, if there is one.
func (b *budget) peek(lane Lane, now time.Time) *entry {
	s := b.shardOf(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.lanes.Get(lane)
	if ok {
		e.used.Store(now.UnixNano())
	}
	return e
}

// entry returns the entry of a lane, a new one if need be. When there is no room
// even for that, it is one that nobody remembers, barred.
func (b *budget) entry(lane Lane, now time.Time) *entry {
	if e := b.peek(lane, now); e != nil {
		return e
	}
	e := newEntry(lane)
	e.used.Store(now.UnixNano())
	e.charged = e.overhead()
	if !b.reserve(e.charged, float64(b.limit), now, nil) {
		e.barred = now.Add(cooldown)
		return e
	}
	s := b.shardOf(lane)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, ok := s.lanes.Get(lane); ok {
		b.used.Add(-e.charged)
		return other
	}
	s.lanes.Add(lane, e)
	return e
}

// reserve counts n bytes more, if they fit below a limit once idle lanes are
// evicted.
func (b *budget) reserve(n int64, limit float64, now time.Time, keep *entry) bool {
	b.admits.Lock()
	defer b.admits.Unlock()
	for float64(b.used.Load()+n) > limit {
		if !b.evict(now, keep) {
			return false
		}
	}
	b.used.Add(n)
	return true
}

// admit reserves the memory of a cold lane.
func (b *budget) admit(e *entry, n int64, now time.Time) bool {
	return b.reserve(n, admitShare*float64(b.limit), now, e)
}

// settle counts what a lane has grown beyond its reservation.
func (b *budget) settle(n int64) { b.used.Add(n) }

// evict drops the lane whose last mark is the longest ago, if that is long
// enough.
func (b *budget) evict(now time.Time, keep *entry) bool {
	var victim *entry
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		if _, e, ok := s.lanes.GetOldest(); ok && e != keep && (victim == nil || e.used.Load() < victim.used.Load()) {
			victim = e
		}
		s.mu.Unlock()
	}
	if victim == nil || now.Sub(time.Unix(0, victim.used.Load())) < idle {
		return false
	}
	s := b.shardOf(victim.lane)
	s.mu.Lock()
	if e, ok := s.lanes.Peek(victim.lane); !ok || e != victim {
		s.mu.Unlock()
		return true // dropped by somebody else: look again
	}
	s.lanes.Remove(victim.lane)
	s.mu.Unlock()
	b.settle(victim.bury())
	b.evicted.Add(1)
	return true
}

// remove drops one lane.
func (b *budget) remove(lane Lane) {
	s := b.shardOf(lane)
	s.mu.Lock()
	e, ok := s.lanes.Peek(lane)
	s.lanes.Remove(lane)
	s.mu.Unlock()
	if ok {
		b.settle(e.bury())
	}
}

// known lists the lanes that fit.
func (b *budget) known(fits func(Lane) bool) []Lane {
	var out []Lane
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for _, lane := range s.lanes.Keys() {
			if fits(lane) {
				out = append(out, lane)
			}
		}
		s.mu.Unlock()
	}
	return out
}

// lanes counts the entries.
func (b *budget) lanes() int64 {
	n := 0
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		n += s.lanes.Len()
		s.mu.Unlock()
	}
	return int64(n)
}

// charge counts what a lane has grown, and bars it when that does not fit.
func (c *Cache) charge(e *entry, grown int64) {
	c.settle(grown)
	if grown <= 0 || c.used.Load() <= c.limit {
		return
	}
	if !c.reserve(0, float64(c.limit), c.now(), e) {
		c.suppress(context.Background(), e)
	}
}

// suppress bars a lane and says so, once a minute.
func (c *Cache) suppress(ctx context.Context, e *entry) {
	now := c.now()
	c.settle(e.bar(now.Add(cooldown)))
	c.metrics.suppressed.Add(ctx, 1)
	if c.warnings.due(now) {
		c.log.WarnContext(ctx, "dedup cache too small: pushes to some lanes read their window anew",
			slog.String(logging.KeyQueue, e.lane.Queue), slog.String(logging.KeyPartition, e.lane.Partition), slog.Int64(logging.KeyLimitBytes, c.limit), slog.Int64(logging.KeyUsedBytes, c.used.Load()))
	}
}

// limiter lets one warning through at a time.
type limiter struct{ last atomic.Int64 }

func (l *limiter) due(now time.Time) bool {
	last := l.last.Load()
	return (last == 0 || now.UnixNano()-last >= int64(warnEvery)) && l.last.CompareAndSwap(last, now.UnixNano())
}
