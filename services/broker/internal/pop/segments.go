package pop

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// keptFrames is from how many frames on a segment is worth keeping: small ones
	// are decoded sooner than looked up, unless they make a handover.
	keptFrames = 32
	// keptPops is for how many pops like the one at hand frames are kept ahead,
	// and leastKept how many bytes of them at least. Reading a segment of 10,000
	// messages again costs 5 ms, which a few hundred pops of one share.
	keptPops  = 8
	leastKept = 256 << 10
	// keptShare is the part of the memory that the frames of one lane may take.
	keptShare = 4
	// entryBytes is about what an entry costs beside its frames and names.
	entryBytes = 400
)

// segments remembers, for each group that reads a lane in small parts of a large
// segment, the frames that it is going to read, so that its next pops neither
// fetch nor decode the segment again. Stored segments never change. A nil one
// remembers nothing.
type segments struct {
	mu      sync.Mutex
	entries *simplelru.LRU[place, ahead]
	bytes   int64
	limit   int64
}

// place is where a group reads.
type place struct {
	tenant                  uuid.UUID
	queue, partition, group string
}

// ahead are frames of one segment that are going to be read from next on.
type ahead struct {
	place  place
	key    store.KnownSegment
	count  int // frames in the segment
	next   int
	frames *segment.Decoded
}

func (a *ahead) cost() int64 {
	return int64(a.frames.Size()+len(a.place.queue)+len(a.place.partition)+len(a.place.group)) + entryBytes
}

func newSegments(limit int64) (*segments, error) {
	if limit < 0 {
		return nil, nil //nolint:nilnil // a nil one remembers nothing
	}
	s := &segments{limit: limit}
	var err error
	// Bytes are the bound, not the number of entries.
	s.entries, err = simplelru.NewLRU(math.MaxInt, func(_ place, a ahead) { s.bytes -= a.cost() })
	if err != nil {
		return nil, fmt.Errorf("create segment cache: %w", err)
	}
	return s, nil
}

// CachedBytes is about how much memory segments take, of which a part was delivered
// or which were written last.
func (s *Service) CachedBytes() int64 {
	if s.segments == nil {
		return s.Tails.Bytes()
	}
	s.segments.mu.Lock()
	defer s.segments.mu.Unlock()
	return s.segments.bytes + s.Tails.Bytes()
}

// at returns the frames that a group reads next, if they are remembered and enough
// for a pop of budget messages.
func (s *segments) at(p place, budget int) (ahead, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.entries.Get(p)
	return a, ok && a.frames.Holds(a.next, min(budget, a.count-a.next))
}

// put remembers frames in place of what was remembered there.
func (s *segments) put(a ahead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.Remove(a.place)
	if a.next >= a.count {
		return // nothing of it will be read
	}
	s.entries.Add(a.place, a)
	s.bytes += a.cost()
	for s.bytes > s.limit {
		s.entries.RemoveOldest()
	}
}

func (s *segments) drop(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.Remove(p)
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
		if a, ok := p.segments.at(at, p.budget()); ok {
			p.held = append(p.held, a)
			known = append(known, a.key)
		}
	}
	return known
}

// unpack writes a claimed slice, from memory where it is there.
func (p *poll) unpack(ctx context.Context, r *rendering, c *store.Popped, s *store.PoppedSegment) error {
	key := store.KnownSegment{PartitionID: c.PartitionID, Base: s.Base, CreatedAt: s.CreatedAt}
	if s.Blob == nil {
		for i := range p.held {
			if a := &p.held[i]; a.key == key && a.frames.Holds(s.Start, s.Take) {
				next := *a
				next.next = s.Start + s.Take
				p.segments.put(next)
				return a.frames.Unpack(s.Start, s.Take, r.write)
			}
		}
		if err := p.fetch(ctx, c, s); err != nil {
			return err
		}
	}
	if n := p.worthKeeping(s); n > 0 {
		frames, err := p.Reader.Decode(s.Blob, s.Start, n)
		if err != nil {
			return err
		}
		if frames.Holds(s.Start, s.Take) {
			p.keep(c, ahead{key: key, count: s.Count, next: s.Start + s.Take, frames: frames})
			return frames.Unpack(s.Start, s.Take, r.write)
		}
	}
	return p.Reader.Unpack(s.Blob, s.Start, s.Take, r.write)
}

// worthKeeping is how many bytes of a segment's frames, from those at hand on, are
// worth remembering.
func (p *poll) worthKeeping(s *store.PoppedSegment) int {
	left := s.Count - s.Start - s.Take
	if p.segments == nil || p.req.Route == Discover || left <= 0 {
		return 0
	}
	if next := p.mayRide() && left >= p.budget(); s.Count < keptFrames && !next {
		return 0
	}
	size, known, err := segment.DecodedSize(s.Blob)
	if err != nil || !known || size > math.MaxInt32 {
		return 0
	}
	limit := int(p.segments.limit / keptShare)
	taken := int(size) / s.Count * s.Take
	if taken*2 > limit {
		return 0
	}
	return min(max(taken*keptPops, leastKept), limit)
}

// keep remembers what the group is going to read of a lane.
func (p *poll) keep(c *store.Popped, a ahead) {
	a.place.tenant = p.req.Tenant
	a.place.queue, a.place.partition, a.place.group = p.own(c.Partition)
	p.segments.put(a)
}

// own are names that outlive the request.
func (p *poll) own(lane string) (queue, partition, group string) {
	return strings.Clone(p.req.Queue), lane, strings.Clone(p.req.Query.Group)
}

// fetch reads a segment that was not sent although what is in memory of it is not
// what was claimed: a batch that is delivered again starts before it.
func (p *poll) fetch(ctx context.Context, c *store.Popped, s *store.PoppedSegment) error {
	p.segments.drop(place{p.req.Tenant, p.req.Queue, c.Partition, p.req.Query.Group})
	stored, found, err := p.Store.SegmentAt(ctx, c.PartitionID, s.Base)
	if err != nil {
		return err
	}
	if !found || stored.Base != s.Base || stored.CreatedAt.UTC().Format(createdAt) != s.CreatedAt {
		return fmt.Errorf("%w: it is no longer stored", segment.ErrCorrupt)
	}
	s.Blob = stored.Blob
	return nil
}

// createdAt is how times are written on the wire.
const createdAt = "2006-01-02T15:04:05.000000Z"
