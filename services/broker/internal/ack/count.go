package ack

import (
	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/wire"
)

// count has the queues of a request count what was carried out of it. Items that name
// no partition have no queue.
func (s *Service) count(results []wire.AckResult, groups []*group) {
	var t collector.Tally
	nameless := len(results)
	for _, g := range groups {
		var n collector.Counts
		for _, i := range g.items {
			if results[i].Success {
				n.AckSuccess++
			} else {
				n.AckFailed++
			}
		}
		nameless -= len(g.items)
		t.Add(s.Lanes.Queue(g.partition), &n)
	}
	if nameless > 0 {
		t.Add(collector.Key{}, &collector.Counts{AckFailed: int64(nameless)})
	}
	s.Counters.AddTally(&t, &collector.Counts{AckRequests: 1})
}
