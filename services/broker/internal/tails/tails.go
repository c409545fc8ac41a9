// Package tails remembers the segments that this broker has written last, for lanes
// whose consumers read message by message right behind the producers. A consumer that
// acknowledges one message and wants the next one can then be given it by an update
// of its cursor alone: what it reads is here already.
//
// Only lanes that somebody has looked for are followed, and only as long as somebody
// does:
//
//	unknown --Find--> followed --Wrote: kept--> followed ...
//	   ^                  |
//	   '---- pushed out, or unread for maxUnread segments
//
// Stored segments never change, so what is here is what the database has, unless it
// has been deleted since: whoever uses a segment has the database confirm that it is
// still there, by its base offset and its time.
package tails

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// maxLanes bounds the lanes that are followed.
	maxLanes = 16384
	// maxUnread is after how many segments a lane is no longer followed that nobody
	// has read from, and how many of one lane are kept.
	maxUnread = 1024
	// segmentBytes and laneBytes are about what a segment costs beside its blob, and a
	// lane beside its segments.
	segmentBytes = 64
	laneBytes    = 200
)

// Segment is one stored segment.
type Segment struct {
	Base      int64     // offset of its first message
	Count     int       // messages
	CreatedAt time.Time // as the database has it
	Blob      []byte
}

// End is the offset of its last message.
func (s *Segment) End() int64 { return s.Base + int64(s.Count) - 1 }

func (s *Segment) cost() int64 { return int64(len(s.Blob)) + segmentBytes }

// Cache holds the tails of lanes. A nil one follows none. It is safe for concurrent
// use.
type Cache struct {
	limit int64

	mu    sync.Mutex
	lanes *lru.LRU[uuid.UUID, *tail]
	bytes int64
}

// tail are the newest segments of one lane, ascending.
type tail struct {
	segments []Segment
	bytes    int64
	unread   int // segments written since the last look
}

// New bounds the memory of all tails, in bytes.
func New(limit int64) (*Cache, error) {
	c := &Cache{limit: limit}
	var err error
	if c.lanes, err = lru.NewLRU(maxLanes, func(_ uuid.UUID, t *tail) { c.bytes -= t.bytes }); err != nil {
		return nil, fmt.Errorf("create the tails of lanes: %w", err)
	}
	return c, nil
}

// Bytes is about how much memory the tails take.
func (c *Cache) Bytes() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// Wrote tells of a segment that is committed.
func (c *Cache) Wrote(lane uuid.UUID, s Segment) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.lanes.Peek(lane)
	if !ok {
		return
	}
	if t.unread++; t.unread > maxUnread || s.cost() > c.limit {
		c.lanes.Remove(lane)
		return
	}
	for len(t.segments) > 0 && t.segments[len(t.segments)-1].End() >= s.Base {
		// Offsets only go back with the database, after a failover that lost commits.
		c.drop(t)
	}
	t.segments = append(t.segments, s)
	c.grow(t, s.cost())
	if len(t.segments) > maxUnread {
		c.drop(t)
	}
	c.shrink()
}

// Find returns the segment with an offset, and has the lane followed from now on.
func (c *Cache) Find(lane uuid.UUID, offset int64) (Segment, bool) {
	if c == nil {
		return Segment{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.lanes.Get(lane)
	if !ok {
		t = &tail{bytes: laneBytes}
		c.bytes += laneBytes
		c.lanes.Add(lane, t)
		c.shrink()
		return Segment{}, false
	}
	t.unread = 0
	i, found := slices.BinarySearchFunc(t.segments, offset, func(s Segment, at int64) int {
		switch {
		case s.End() < at:
			return -1
		case s.Base > at:
			return 1
		}
		return 0
	})
	if !found {
		return Segment{}, false
	}
	return t.segments[i], true
}

func (c *Cache) grow(t *tail, n int64) {
	t.bytes += n
	c.bytes += n
}

// shrink lets go of the lanes that nobody has looked for the longest.
func (c *Cache) shrink() {
	for c.bytes > c.limit {
		c.lanes.RemoveOldest()
	}
}

// drop lets go of the oldest segment.
func (c *Cache) drop(t *tail) {
	c.grow(t, -t.segments[0].cost())
	t.segments[0] = Segment{}
	t.segments = t.segments[1:]
}
