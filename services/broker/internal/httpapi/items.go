package httpapi

import (
	"bytes"
	"context"
)

// itemCost is about what one item of a request costs beside its bytes, from
// parsing it to answering for it: 300,000 of the smallest ones were seen to take
// 300 MB, thirty times their body.
const itemCost = 1 << 10

// expectItems takes as much of the budget as the items of the body can cost,
// before they are parsed. An item is an object, so there are no more of them than
// opening braces. The budget is not the one of the bytes: a request that holds
// bytes and waits for more of them could wait for another one that does the same,
// while one that has its share of both waits for nothing here. A request beyond
// the whole budget is worked on alone.
func (b *body) expectItems(ctx context.Context) error {
	n := min(int64(bytes.Count(b.bytes(), []byte("{")))*itemCost, b.owner.maxItems)
	if err := b.wait(ctx, b.owner.items, n); err != nil {
		return err
	}
	b.items = n
	b.owner.inflightItems.Add(n)
	return nil
}

// haveItems gives back what was taken for objects that turned out to be part of
// payloads.
func (b *body) haveItems(count int) {
	surplus := b.items - int64(count)*itemCost
	if surplus <= 0 {
		return
	}
	b.items -= surplus
	b.owner.inflightItems.Add(-surplus)
	b.owner.items.Release(surplus)
}
