package pop

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
)

// messageOverhead is about what the wire adds to a payload.
const messageOverhead = 512

// maxReply bounds one reply, unless its first message alone is larger (design
// rule 15).
const maxReply = 16 << 20

// render writes the reply into p.body, decoding one segment at a time and
// copying payload bytes as they are. It leaves p.body nil when nothing was
// claimed.
func (p *poll) render(ctx context.Context, claimed []store.Popped) error {
	messages, packed := 0, 0
	for i := range claimed {
		for j := range claimed[i].Segments {
			messages += claimed[i].Segments[j].Take
			packed += len(claimed[i].Segments[j].Blob)
		}
	}
	if messages == 0 {
		return nil
	}
	h := wire.PopHeader{
		Queue: p.req.Queue, Partition: claimed[0].Partition, PartitionID: claimed[0].PartitionID.String(),
		LeaseID: p.worker, Group: p.req.Query.Group, PartitionsClaimed: len(claimed),
	}
	if p.req.Query.AutoAck {
		h.LeaseID = ""
	}
	dst := wire.AppendPopStart(make([]byte, 0, messages*messageOverhead+packed), h)
	var err error
	for i := range claimed {
		if dst, err = p.renderPartition(ctx, dst, h, &claimed[i]); err != nil {
			return err
		}
	}
	p.body = wire.AppendPopEnd(dst, h)
	return nil
}

func (p *poll) renderPartition(ctx context.Context, dst []byte, h wire.PopHeader, c *store.Popped) ([]byte, error) {
	m := wire.PopMessage{PartitionID: c.PartitionID.String(), Partition: c.Partition, Attempt: max(1, c.DeliveryAttempt)}
	for i := range c.Segments {
		seg := &c.Segments[i]
		m.CreatedAt = seg.CreatedAt
		err := p.Reader.Unpack(seg.Blob, seg.Start, seg.Take, func(_ int, f segment.Frame) error {
			m.ID, m.TransactionID, m.ProducerSub, m.Data = f.MessageID, f.TransactionID, f.ProducerSub, f.Payload
			m.TraceID, m.HasTrace = f.TraceID, f.HasTrace
			dst = wire.AppendPopMessage(dst, p.count == 0, h, m)
			p.count++
			return nil
		})
		if err != nil {
			// The lane cannot move past this segment: say where it is.
			p.Logger.ErrorContext(ctx, "segment not readable", slog.String(logging.KeyQueue, p.req.Queue),
				slog.String(logging.KeyPartition, c.Partition), slog.String(logging.KeyPartitionID, m.PartitionID),
				slog.Int64(logging.KeyOffset, seg.Base+int64(seg.Start)), logging.Err(err))
			return nil, fmt.Errorf("%w: %w", ErrFailed, err)
		}
	}
	return dst, nil
}
