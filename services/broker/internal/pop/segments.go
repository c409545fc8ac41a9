package pop

import (
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// keptFrames is from how many frames on a segment is worth keeping when only a
	// part of it was delivered: small ones are decoded sooner than looked up.
	keptFrames = 32
	// keptShare is the part of the memory that one segment may take.
	keptShare = 4
	// placesKept bounds the groups of lanes of which it is known where they read.
	placesKept = 65536
	// entryBytes is about what an entry costs beside its segment.
	entryBytes = 256
)

// segments remembers decoded segments of which a part is still to be delivered,
// so that small pops of large segments neither fetch nor decode one again and
// again. Stored segments never change. A nil one remembers nothing.
type segments struct {
	mu      sync.Mutex
	entries *simplelru.LRU[store.KnownSegment, *segment.Decoded]
	bytes   int64
	limit   int64
	// places says which of them a group reads in a lane.
	places *lru.Cache[place, store.KnownSegment]
}

// place is where a group reads.
type place struct {
	tenant                  uuid.UUID
	queue, partition, group string
}

// held is a segment that this request may be delivered from. It stays in hand
// although the memory may forget it meanwhile.
type held struct {
	key     store.KnownSegment
	decoded *segment.Decoded
}

func newSegments(limit int64) (*segments, error) {
	if limit < 0 {
		return nil, nil //nolint:nilnil // a nil one remembers nothing
	}
	s := &segments{limit: limit}
	var err error
	// Bytes are the bound, not the number of entries.
	s.entries, err = simplelru.NewLRU(math.MaxInt, func(_ store.KnownSegment, d *segment.Decoded) { s.bytes -= cost(d) })
	if err != nil {
		return nil, fmt.Errorf("create segment cache: %w", err)
	}
	if s.places, err = lru.New[place, store.KnownSegment](placesKept); err != nil {
		return nil, fmt.Errorf("create segment cache: %w", err)
	}
	return s, nil
}

func cost(d *segment.Decoded) int64 { return int64(d.Size()) + entryBytes }

// at returns the segment that a group reads, if it is remembered.
func (s *segments) at(p place) (held, bool) {
	key, ok := s.places.Get(p)
	if !ok {
		return held{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.entries.Get(key)
	return held{key, d}, ok
}

// keep remembers a segment.
func (s *segments) keep(key store.KnownSegment, d *segment.Decoded) {
	if cost(d) > s.limit/keptShare {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.Remove(key) // Add would not tell that it replaced one
	s.entries.Add(key, d)
	s.bytes += cost(d)
	for s.bytes > s.limit {
		s.entries.RemoveOldest()
	}
}

// known collects the segments that the request may be delivered from without
// their being sent.
func (p *poll) known(partitions ...string) (known []store.KnownSegment) {
	p.held = p.held[:0]
	if p.segments == nil {
		return nil
	}
	at := place{p.req.Tenant, p.req.Queue, "", p.req.Query.Group}
	for _, at.partition = range partitions {
		if h, ok := p.segments.at(at); ok {
			p.held = append(p.held, h)
			known = append(known, h.key)
		}
	}
	return known
}

// decoded returns a segment in memory, or nil when it is not to be: whole ones
// are needed once.
func (p *poll) decoded(c *store.Popped, s *store.PoppedSegment) (*segment.Decoded, error) {
	key := store.KnownSegment{PartitionID: c.PartitionID, Base: s.Base, CreatedAt: s.CreatedAt}
	if s.Blob == nil {
		for i := range p.held {
			if p.held[i].key == key {
				p.readOn(c, s, key)
				return p.held[i].decoded, nil
			}
		}
		return nil, fmt.Errorf("%w: no content", segment.ErrCorrupt)
	}
	if p.segments == nil || p.req.Route == Discover || s.Take == s.Count || s.Count < keptFrames {
		return nil, nil //nolint:nilnil // read it from the blob
	}
	d, err := p.Reader.Decode(s.Blob)
	if err != nil {
		return nil, err
	}
	p.segments.keep(key, d)
	p.readOn(c, s, key)
	return d, nil
}

// readOn notes in which segment the group will go on.
func (p *poll) readOn(c *store.Popped, s *store.PoppedSegment, key store.KnownSegment) {
	at := place{p.req.Tenant, p.req.Queue, c.Partition, p.req.Query.Group}
	if s.Start+s.Take == s.Count {
		p.segments.places.Remove(at)
		return
	}
	if was, ok := p.segments.places.Get(at); ok && was == key {
		return
	}
	at.queue, at.group = strings.Clone(at.queue), strings.Clone(at.group)
	p.segments.places.Add(at, key)
}
