package pop

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

const (
	// messageOverhead is about what the wire adds to a payload.
	messageOverhead = 512
	// messageBytes is what the wire has of most messages beside payload, transaction
	// id and names, less what a frame has.
	messageBytes = 288
	// maxReply bounds one reply, unless its first message alone is larger (design
	// rule 15).
	maxReply = 16 << 20
	// queueLease stands for the lease time of a queue where only the memory of a
	// batch depends on it.
	queueLease = time.Minute
	// maxScratch keeps one huge batch from pinning its memory for ever.
	maxScratch = 1 << 20
)

// rendering is the state of one reply while it is written. It is reused.
type rendering struct {
	dst     []byte
	message wire.PopMessage
	tail    []byte // how the messages of the segment at hand end
	hashes  []byte // of the partition at hand, when they are wanted
	count   int    // messages written
	hash    bool
}

// write renders one frame. Nothing is allocated for it.
func (r *rendering) write(_ int, f segment.Frame) error {
	m := &r.message
	m.ID, m.TransactionID, m.ProducerSub, m.Data = f.MessageID, f.TransactionID, f.ProducerSub, f.Payload
	m.TraceID, m.HasTrace = f.TraceID, f.HasTrace
	r.dst = wire.AppendPopMessage(r.dst, r.count == 0, m, r.tail)
	r.count++
	if r.hash {
		r.hashes = segment.AppendHash(r.hashes, f.TransactionID)
	}
	return nil
}

// reset lets go of what the last reply referred to.
func (r *rendering) reset() {
	*r = rendering{tail: r.tail[:0], hashes: r.hashes[:0]}
	if cap(r.hashes) > maxScratch {
		r.hashes = nil
	}
}

// render writes the reply into p.body, decoding one segment at a time and
// copying payload bytes as they are. It leaves p.body nil when nothing was
// claimed.
func (p *poll) render(ctx context.Context, claimed []store.Popped) error {
	room := p.room(claimed)
	if room == 0 {
		return nil
	}
	h := wire.PopHeader{
		Queue: p.req.Queue, Partition: claimed[0].Partition, PartitionID: claimed[0].PartitionID.String(),
		LeaseID: p.worker, Group: p.req.Query.Group, PartitionsClaimed: len(claimed),
	}
	if p.req.Query.AutoAck {
		h.LeaseID = ""
	}
	r, _ := p.scratch.Get().(*rendering)
	defer func() {
		r.reset()
		p.scratch.Put(r)
	}()
	r.hash = p.Registry != nil && !p.req.Query.AutoAck
	r.dst = wire.AppendPopStart(p.Replies.Get(room), h)
	for i := range claimed {
		if err := p.renderPartition(ctx, r, &h, &claimed[i]); err != nil {
			return err
		}
	}
	p.body, p.count, p.lanes = wire.AppendPopEnd(r.dst, h), r.count, len(claimed)
	return nil
}

// room is about how large the reply gets; 0 without a message.
func (p *poll) room(claimed []store.Popped) int {
	n := 0
	for i := range claimed {
		c := &claimed[i]
		each := messageBytes + len(c.Partition) + len(p.req.Query.Group)
		for j := range c.Segments {
			s := &c.Segments[j]
			size, known, err := segment.DecodedSize(s.Blob)
			if err != nil || !known {
				size = uint64(len(s.Blob))
			}
			n += s.Take*each + int(min(size, maxReply))*s.Take/max(s.Count, 1)
		}
	}
	return min(n, maxReply)
}

func (p *poll) renderPartition(ctx context.Context, r *rendering, h *wire.PopHeader, c *store.Popped) error {
	tail := wire.PopTail{PartitionID: c.PartitionID.String(), Partition: c.Partition, Attempt: max(1, c.DeliveryAttempt)}
	r.hashes = r.hashes[:0]
	for i := range c.Segments {
		s := &c.Segments[i]
		tail.CreatedAt = s.CreatedAt
		r.tail = wire.AppendPopTail(r.tail[:0], h, &tail)
		if err := p.unpack(ctx, r, c, s); err != nil {
			// The lane cannot move past this segment: say where it is.
			p.Logger.ErrorContext(ctx, "segment not readable", slog.String(logging.KeyQueue, p.req.Queue),
				slog.String(logging.KeyPartition, c.Partition), slog.String(logging.KeyPartitionID, tail.PartitionID),
				slog.Int64(logging.KeyOffset, s.Base+int64(s.Start)), logging.Err(err))
			return fmt.Errorf("%w: %w", ErrFailed, err)
		}
	}
	if r.hash {
		lease := queueLease
		if n := p.req.Query.LeaseSeconds; n > 0 {
			lease = time.Duration(n) * time.Second
		}
		p.Registry.Delivered(c.PartitionID, p.req.Query.Group, p.worker, batchEnd(c), r.hashes, lease)
	}
	return nil
}
