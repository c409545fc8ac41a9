package pop

import (
	"context"
	"time"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/store"
)

// queue is what the request is counted under; a discovery pop names no queue.
func (p *poll) queue() collector.Key {
	if p.req.Route == Discover {
		return collector.Key{}
	}
	return collector.Queue(p.req.Tenant, p.req.Queue)
}

// tally counts what was claimed. What a discovery pop claimed counts for the queue of
// each lane.
func (p *poll) tally(claimed []store.Popped) {
	now := time.Now()
	for i := range claimed {
		n := deliveryOf(&claimed[i], now)
		if p.req.Query.AutoAck {
			n.AckSuccess = n.PopMessages
		}
		if p.req.Route == Discover {
			p.Counters.Add(collector.Lane(claimed[i].PartitionID), &n)
			continue
		}
		p.delivered.Add(&n)
	}
}

// deliveryOf counts the messages of a lane and how old they are. A clock of this
// machine that is behind the one of the database makes them no younger than new.
func deliveryOf(c *store.Popped, now time.Time) (n collector.Counts) {
	for i := range c.Segments {
		s := &c.Segments[i]
		n.PopMessages += int64(s.Take)
		created, err := time.Parse(time.RFC3339Nano, s.CreatedAt)
		if err != nil {
			continue // what the database does not write
		}
		age := max(now.Sub(created).Microseconds(), 0)
		n.LagMicros += age * int64(s.Take)
		n.MaxLagMicros = max(n.MaxLagMicros, age)
	}
	return n
}

// answered counts a request. One that was refused, or whose client has left, got no
// answer that would count.
func (p *poll) answered(ctx context.Context, err error) {
	switch p.metrics.answered(ctx, p.req.Route, p.count, err) {
	case delivered:
		p.delivered.PopRequests = 1
		p.Counters.Add(p.queue(), &p.delivered)
	case empty:
		p.Counters.Add(p.queue(), &collector.Counts{PopRequests: 1, PopEmpty: 1})
	case failed:
		p.Counters.DatabaseFailed()
	}
}
