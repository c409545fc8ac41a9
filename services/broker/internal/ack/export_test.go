package ack

import "github.com/queenmq/queen/pkg/wire"

// Groups are the positions of items by group, and those that belong to none.
func Groups(items []wire.AckItem) (groups [][]int, refused []int) {
	results := make([]wire.AckResult, len(items))
	for _, g := range split(items, results) {
		groups = append(groups, g.items)
		for n, i := range g.items {
			if g.partition.String() != items[i].PartitionID || g.lease != items[i].LeaseID || g.group != items[i].Group ||
				string(g.statuses[n]) != items[i].Status || len(g.hashes) != len(g.items) {
				panic("an item of another group")
			}
		}
	}
	for i := range results {
		if results[i].Error != "" {
			refused = append(refused, i)
		}
	}
	return groups, refused
}
