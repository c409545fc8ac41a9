package collector

import (
	"cmp"
	"slices"
)

// Traffic is what moved through a queue.
type Traffic struct {
	Key    Key
	Pushed int64 // messages stored
	Popped int64 // messages delivered
	Acked  int64 // acks settled
	Parked int64 // pops that wait now
}

func (t *Traffic) moved() int64 { return t.Pushed + t.Popped + t.Acked }

// trafficOf is that of some counts.
func trafficOf(n *Counts) Traffic {
	return Traffic{Pushed: n.PushMessages, Popped: n.PopMessages, Acked: n.AckSuccess + n.AckFailed}
}

func (t *Traffic) sub(o *Traffic) {
	t.Pushed -= o.Pushed
	t.Popped -= o.Popped
	t.Acked -= o.Acked
}

// Busiest is what moved since it was last asked, of the queues with most of it. What a
// flush has taken meanwhile counts. It is for one caller.
func (c *Counters) Busiest(most int) []Traffic {
	var all []Traffic
	for i := range c.shards {
		all = append(all, c.shards[i].moved()...)
	}
	slices.SortFunc(all, func(a, b Traffic) int { return cmp.Compare(b.moved(), a.moved()) })
	return all[:min(most, len(all))]
}

// moved is what was counted since the last time, and marks it as told.
func (s *shard) moved() (out []Traffic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.queues {
		t := trafficOf(&e.counts)
		now := t
		t.sub(&e.told)
		e.told = now
		if t.Key, t.Parked = k, e.parked; t.moved() > 0 && k.queue != "" {
			out = append(out, t)
		}
	}
	return out
}
