package ack

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/errtext"
)

// sort tells the groups that are exactly a batch which this broker has delivered,
// all of it completed, from the rest.
func (s *Service) sort(groups []*group) (whole, rest []*group) {
	shared := cursorsOf(groups)
	for _, g := range groups {
		ok := g.lease != "" && !shared[store.CursorKey{PartitionID: g.partition, Group: g.group}] && g.completed()
		if ok {
			g.batch, ok = s.Registry.Take(g.partition, g.group, g.lease, g.hashes)
		}
		if ok {
			whole = append(whole, g)
		} else {
			rest = append(rest, g)
		}
	}
	return whole, rest
}

// cursorsOf finds the cursors on which more than one group acts; nil for none,
// which is the rule.
func cursorsOf(groups []*group) map[store.CursorKey]bool {
	if len(groups) < 2 {
		return nil
	}
	shared := make(map[store.CursorKey]bool, len(groups))
	for _, g := range groups {
		k := store.CursorKey{PartitionID: g.partition, Group: g.group}
		_, seen := shared[k]
		shared[k] = seen
	}
	return shared
}

// commit moves the cursors of whole batches to their ends. It returns the groups
// that have to go by their hashes. An error means that nothing was changed.
func (s *Service) commit(ctx context.Context, tenant uuid.UUID, results []wire.AckResult, whole []*group) (again []*group, err error) {
	if len(whole) == 0 {
		return nil, nil
	}
	batches := make([]store.AckRow, len(whole))
	for i, g := range whole {
		batches[i] = store.AckRow{PartitionID: g.partition, Group: g.group, Worker: g.lease, End: g.batch.End, Count: len(g.hashes)}
	}
	verdicts, err := s.Batches.Ack(ctx, batches)
	if err != nil {
		s.putBack(whole...)
		return nil, err
	}
	overloaded := 0
	for i, g := range whole {
		switch v := verdicts[i]; v.State {
		case ackfusion.Committed:
			g.accept(results, &store.AckOutcome{OK: true, Released: true})
			if v.Handed { // nobody else is to look at the lane
				s.Registry.Released(g.partition, g.group, g.lease)
				continue
			}
			s.released(tenant, g, true)
		case ackfusion.Rejected:
			again = append(again, g)
		case ackfusion.Unknown:
			g.unsure = true
			again = append(again, g)
		default:
			s.fail(ctx, results, g, v.Err)
			if errors.Is(v.Err, ErrOverloaded) {
				overloaded++
			}
		}
	}
	if overloaded == len(whole) {
		return nil, ErrOverloaded
	}
	return again, nil
}

// fail refuses a group of which nothing was committed. The batch is remembered for
// the next try.
func (s *Service) fail(ctx context.Context, results []wire.AckResult, g *group, err error) {
	s.putBack(g)
	if !errors.Is(err, ErrOverloaded) {
		s.logFailure(ctx, "acknowledge", g, err)
	}
	g.refuse(results, errtext.Of(err))
}

func (s *Service) putBack(groups ...*group) {
	for _, g := range groups {
		s.Registry.PutBack(g.batch)
	}
}
