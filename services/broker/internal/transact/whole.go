package transact

import (
	"slices"

	"github.com/queenmq/queen/pkg/store"
)

// recognise gives the positional form to the acks that are exactly a batch which
// this broker has delivered, all of it completed. Of the batches of the others
// nothing is to be expected any more.
func (b *bundle) recognise() {
	cursors := make(map[store.CursorKey]int, len(b.tx.Acks))
	for i := range b.tx.Acks {
		cursors[store.CursorKey{PartitionID: b.tx.Acks[i].PartitionID, Group: b.tx.Acks[i].Group}]++
	}
	for i := range b.tx.Acks {
		a := &b.tx.Acks[i]
		if a.Worker != "" && completed(a) && cursors[store.CursorKey{PartitionID: a.PartitionID, Group: a.Group}] == 1 {
			if batch, ok := b.Registry.Take(a.PartitionID, a.Group, a.Worker, a.Hashes); ok {
				a.Whole, a.End = true, batch.End
				b.taken = append(b.taken, batch)
				continue
			}
		}
		b.Registry.Forget(a.PartitionID, a.Group, a.Worker)
	}
}

func completed(a *store.TxAck) bool {
	return !slices.ContainsFunc(a.Statuses, func(s store.AckStatus) bool { return s != store.AckCompleted })
}

// byHash takes the positional form back, and tells whether there was one: the
// other form may be accepted, and says better why it is not.
func (b *bundle) byHash() bool {
	if len(b.taken) == 0 {
		return false
	}
	b.taken = nil
	acks := slices.Clone(b.tx.Acks) // the submitted ones are not ours any more
	for i := range acks {
		acks[i].Whole, acks[i].End = false, 0
	}
	b.tx.Acks = acks
	return true
}

// putBack remembers the batches of a bundle of which nothing was committed.
func (b *bundle) putBack() {
	for _, t := range b.taken {
		b.Registry.PutBack(t)
	}
}
