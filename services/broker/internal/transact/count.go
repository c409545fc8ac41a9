package transact

import "github.com/queenmq/queen/pkg/collector"

// count has the queues of a committed bundle count what was done to them.
func (b *bundle) count() {
	var t collector.Tally
	for i := range b.tx.Pushes {
		p := &b.tx.Pushes[i]
		t.Add(collector.Queue(b.tx.Tenant, p.Queue), &collector.Counts{PushMessages: int64(p.Count)})
	}
	for i := range b.tx.Acks {
		a := &b.tx.Acks[i]
		t.Add(b.Lanes.Queue(a.PartitionID), &collector.Counts{AckSuccess: int64(len(a.Hashes))})
	}
	b.Counters.AddTally(&t, &collector.Counts{Transactions: 1})
}
