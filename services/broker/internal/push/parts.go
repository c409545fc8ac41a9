package push

import (
	"errors"
	"time"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/fusion"
)

// parts turns the groups of a request into what fusion stores.
func (r *request) parts(deadline time.Time) []fusion.Part {
	parts := make([]fusion.Part, len(r.groups))
	messages := make([]fusion.Message, 0, len(r.items))
	for i := range r.groups {
		g := &r.groups[i]
		from := len(messages)
		for _, n := range g.items {
			messages = append(messages, fusion.Message{Frame: segment.Frame{
				MessageID: r.results[n].MessageID, TransactionID: r.results[n].TransactionID,
				ProducerSub: r.sub, Payload: r.items[n].Payload,
			}})
		}
		parts[i] = fusion.Part{
			Lane:     fusion.Lane{Tenant: r.tenant, Queue: g.queue, Partition: g.partition},
			Messages: messages[from:len(messages):len(messages)], Minted: g.minted, Deadline: deadline,
		}
	}
	return parts
}

// refused tells that no part was begun.
func refused(parts []fusion.Part) bool {
	for i := range parts {
		for m := range parts[i].Messages {
			if !errors.Is(parts[i].Messages[m].Err, fusion.ErrOverloaded) {
				return false
			}
		}
	}
	return true
}

// collect puts the outcomes where the items were.
func (r *request) collect(parts []fusion.Part) {
	for i := range r.groups {
		for m, n := range r.groups[i].items {
			out, res := &parts[i].Messages[m], &r.results[n]
			switch out.Outcome {
			case fusion.Queued:
				res.Status = wire.StatusQueued
			case fusion.Duplicate:
				res.Status, res.MessageID = wire.StatusDuplicate, out.Original
			default:
				res.Status, res.Error = wire.StatusFailed, errtext.Of(out.Err)
				r.broken = r.broken || !errors.Is(out.Err, fusion.ErrOverloaded)
			}
		}
	}
}

// count has the queues count what was stored.
func (r *request) count() {
	var t collector.Tally
	for i := range r.groups {
		var n collector.Counts
		for _, item := range r.groups[i].items {
			if r.results[item].Status == wire.StatusQueued {
				n.PushMessages++
			}
		}
		t.Add(collector.Queue(r.tenant, r.groups[i].queue), &n)
	}
	r.Counters.AddTally(&t, &collector.Counts{PushRequests: 1})
	if r.broken {
		r.Counters.DatabaseFailed()
	}
}
