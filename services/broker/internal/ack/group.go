package ack

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/registry"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// The wire texts for items that could not act.
const (
	textStale = "already committed: the cursor moved past this message before this ack"
	textLost  = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"
)

type groupKey struct {
	partition    uuid.UUID
	lease, group string
}

// group is the part of a request that is one database call.
type group struct {
	groupKey
	items    []int // positions in the request
	hashes   [][16]byte
	statuses []store.AckStatus
	// batch is set while the group is known to be a whole batch.
	batch registry.Taken
	// unsure is set when the batch may have been committed, and the answer lost.
	unsure bool
}

// split sorts items into groups, in order of appearance, and answers those whose
// partition id is none. Items of a group mostly stand together: it is looked up once
// for all of them, and they lie in memory that is made once for all groups.
func split(items []wire.AckItem, results []wire.AckResult) []*group {
	var groups []*group
	byKey := make(map[groupKey]*group)
	room := group{
		items: make([]int, 0, len(items)), hashes: make([][16]byte, 0, len(items)), statuses: make([]store.AckStatus, 0, len(items)),
	}
	var g *group // of the item before
	for i := range items {
		it := &items[i]
		if g == nil || !together(it, &items[i-1]) {
			g.close()
			id, err := lanes.ParseID(it.PartitionID)
			if err != nil {
				g, results[i].Error = nil, err.Error()
				continue
			}
			key := groupKey{id, it.LeaseID, it.Group}
			if g = byKey[key]; g == nil {
				g = &group{groupKey: key, items: room.items[i:i], hashes: room.hashes[i:i], statuses: room.statuses[i:i]}
				byKey[key] = g
				groups = append(groups, g)
			}
		}
		g.items = append(g.items, i)
		g.hashes = append(g.hashes, segment.Hash(it.TransactionID))
		g.statuses = append(g.statuses, store.AckStatus(it.Status))
	}
	return groups
}

// together says that two items are of one group.
func together(a, b *wire.AckItem) bool {
	return a.PartitionID == b.PartitionID && a.LeaseID == b.LeaseID && a.Group == b.Group
}

// close leaves the memory behind the items of a group to the next one. A group that
// goes on later gets some of its own.
func (g *group) close() {
	if g != nil {
		g.items, g.hashes, g.statuses = slices.Clip(g.items), slices.Clip(g.hashes), slices.Clip(g.statuses)
	}
}

// completed says that nothing but success was reported.
func (g *group) completed() bool {
	for _, s := range g.statuses {
		if s != store.AckCompleted {
			return false
		}
	}
	return true
}

// runGroup makes the call of one group and fills in its results.
func (s *Service) runGroup(ctx context.Context, deadline time.Time, tenant uuid.UUID, items []wire.AckItem, results []wire.AckResult, g *group) {
	s.Registry.Forget(g.partition, g.group, g.lease)
	var out store.AckOutcome
	err := retry.Do(ctx, deadline, func(ctx context.Context) error {
		var err error
		out, err = s.Store.AckByHash(ctx, g.partition, g.group, g.lease, g.hashes, g.statuses)
		return err
	})
	if err == nil && !out.OK && g.unsure {
		out, err = s.settled(ctx, deadline, g, out)
	}
	if err != nil {
		s.logFailure(ctx, "acknowledge", g, err)
		g.refuse(results, errtext.Of(err))
		return
	}
	if !out.OK {
		g.refuse(results, out.Error)
		return
	}
	s.Admission.Commit()
	g.accept(results, &out)
	if out.DLQ {
		s.handOff(ctx, deadline, items, results, g, &out)
	}
	if out.Released {
		s.released(tenant, g, !out.DLQ && !out.Dropped && g.completed())
	}
}

// settled looks whether a refusal only says that the batch was committed before
// its answer was lost. A cursor at the end of the batch proves that all of it is
// done.
func (s *Service) settled(ctx context.Context, deadline time.Time, g *group, refusal store.AckOutcome) (store.AckOutcome, error) {
	var committed int64
	var found bool
	err := retry.Read(ctx, deadline, func(ctx context.Context) error {
		var err error
		committed, found, err = s.Store.Cursor(ctx, g.partition, g.group)
		return err
	})
	if err == nil && found && committed >= g.batch.End {
		return store.AckOutcome{OK: true, Released: true}, nil
	}
	return refusal, err
}

// handOff completes a dead-letter request and adjusts the results: the lease
// ends with it, or the items that asked for it are refused.
func (s *Service) handOff(ctx context.Context, deadline time.Time, items []wire.AckItem, results []wire.AckResult, g *group, out *store.AckOutcome) {
	refusal, err := s.Letters.File(ctx, deadline, deadletter.Poison{
		PartitionID: g.partition, Group: g.group, Worker: out.Worker,
		Offset: out.Offset, Reasons: g.reasons(items),
	})
	if err != nil {
		s.logFailure(ctx, "dead-letter", g, err)
		refusal = errtext.Of(err)
	}
	out.Released = refusal == ""
	if out.Released {
		s.Counters.DeadLettered()
	}
	for n, i := range g.items {
		r := &results[i]
		r.LeaseReleased, r.DLQ = out.Released, out.Released
		if refusal != "" && r.Success && g.statuses[n] != store.AckCompleted {
			r.Success, r.Error = false, refusal
		}
	}
}

func (g *group) reasons(items []wire.AckItem) []deadletter.Reason {
	var reasons []deadletter.Reason
	for n, i := range g.items {
		if g.statuses[n] != store.AckCompleted {
			reasons = append(reasons, deadletter.Reason{TransactionID: items[i].TransactionID, Error: items[i].Error})
		}
	}
	return reasons
}

// refuse gives every item of the group the same error.
func (g *group) refuse(results []wire.AckResult, text string) {
	for _, i := range g.items {
		results[i].Success, results[i].Error = false, text
	}
}

// accept reports a group that was carried out, with the items that could not act.
func (g *group) accept(results []wire.AckResult, out *store.AckOutcome) {
	for _, i := range g.items {
		results[i].Success, results[i].LeaseReleased = true, out.Released
	}
	// The verdict belongs to the transaction id: where one is named more than
	// once, it applies to every mention with a status of that kind.
	noop, stale, lost := g.named(out.Noop), g.named(out.Stale), g.named(out.Unresolved)
	for n, i := range g.items {
		done := g.statuses[n] == store.AckCompleted
		switch r := &results[i]; {
		case lost[g.hashes[n]]:
			r.Success, r.Error = false, textLost
		case done && noop[g.hashes[n]]:
			r.Noop = true
		case !done && stale[g.hashes[n]]:
			r.Success, r.Error = false, textStale
		}
	}
}

// named returns the hashes at some positions; nil for none, which is the rule.
func (g *group) named(positions []int) map[[16]byte]bool {
	if len(positions) == 0 {
		return nil
	}
	set := make(map[[16]byte]bool, len(positions))
	for _, n := range positions {
		set[g.hashes[n]] = true
	}
	return set
}

// released tells whom it concerns that a lease has ended; full says that its whole
// batch was settled.
func (s *Service) released(tenant uuid.UUID, g *group, full bool) {
	s.Registry.Released(g.partition, g.group, g.lease)
	s.Announcer.Released(tenant, g.partition, g.group, "", "", full)
}

func (s *Service) logFailure(ctx context.Context, step string, g *group, err error) {
	s.Counters.DatabaseFailed()
	s.failures.Do(func() {
		lane, _ := s.Lanes.Get(g.partition)
		s.Logger.ErrorContext(ctx, "ack failed", slog.String(logging.KeyStep, step), slog.String(logging.KeyQueue, lane.Queue),
			slog.String(logging.KeyPartition, lane.Partition), slog.String(logging.KeyPartitionID, g.partition.String()),
			slog.String(logging.KeyGroup, g.group), logging.Err(err))
	})
}
