package pop

import (
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
)

// maxHandover bounds the messages of one handover, decoded: all rides of a transaction
// together then are no more than maxRideBytes.
const maxHandover = maxRideBytes / maxRides

// handover is the claim of the request on the lane that is checked out, in the very
// update that commits the batch of a row, if the whole batch that follows is in memory:
// frames of a segment of which a part was delivered, or a segment that this broker has
// written lately.
func (p *poll) handover(c *hotlist.Checkout, row *store.AckRow) (store.Handover, bool) {
	names := c.Partitions()
	if p.segments == nil || len(names) == 0 {
		return store.Handover{}, false
	}
	a, ok := p.following(names[0], row)
	if !ok {
		return store.Handover{}, false
	}
	p.held = append(p.held[:0], a)
	args := p.args()
	return store.Handover{
		Worker: args.Worker, LeaseSeconds: args.LeaseSeconds, Until: row.End + int64(args.Budget), Segment: a.key, SkipWindow: c.SkipWindow(),
	}, true
}

// following are the frames that follow the batch of a row, enough for the request.
func (p *poll) following(partition string, row *store.AckRow) (ahead, bool) {
	from, budget := row.End+1, p.budget()
	at := place{p.req.Tenant, p.req.Queue, partition, p.req.Query.Group}
	if a, ok := p.segments.at(at, budget); ok && a.key.PartitionID == row.PartitionID && a.key.Base+int64(a.next) == from &&
		a.count-a.next >= budget && a.frames.Span(a.next, budget) <= maxHandover {
		return a, true
	}
	s, ok := p.Tails.Find(row.PartitionID, from)
	start := int(from - s.Base)
	if !ok || s.Count-start < budget || !decodesSoon(s.Blob) {
		return ahead{}, false
	}
	frames, err := p.Reader.Decode(s.Blob, start, maxHandover)
	if err != nil || !frames.Holds(start, budget) {
		return ahead{}, false
	}
	at.queue, at.partition, at.group = p.own(partition)
	return ahead{
		place: at, key: store.KnownSegment{PartitionID: row.PartitionID, Base: s.Base, CreatedAt: s.CreatedAt.UTC().Format(createdAt)},
		count: s.Count, next: start, frames: frames,
	}, true
}

// decodesSoon says whether a segment is small enough to be decoded while the acks of
// others wait.
func decodesSoon(blob []byte) bool {
	size, known, err := segment.DecodedSize(blob)
	return err == nil && known && size <= maxHandover
}

// handed is what a handover that was made has brought.
func (p *poll) handed(c *hotlist.Checkout, h *store.Handover, last int64) *store.PopServed {
	a := &p.held[0]
	return &store.PopServed{
		Popped: store.Popped{
			Partition: c.Partitions()[0], PartitionID: a.key.PartitionID, DeliveryAttempt: 1,
			Segments: []store.PoppedSegment{{
				Base: a.key.Base, Start: a.next, Take: int(h.Until - a.key.Base - int64(a.next) + 1), Count: a.count, CreatedAt: a.key.CreatedAt,
			}},
		},
		LastOffset: last,
	}
}
