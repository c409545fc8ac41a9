package push

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// apply settles the groups of an answered bundle and returns those whose
// segment has to be submitted again without its duplicates.
func (r *request) apply(ctx context.Context, bundle []*group, verdicts []store.PushVerdict) (again []*group) {
	if len(verdicts) != len(bundle) {
		r.failAll(ctx, bundle, unexpected("verdicts", len(verdicts), len(bundle)))
		return nil
	}
	for i, g := range bundle {
		v := &verdicts[i]
		switch {
		case v.Status == store.PushQueued:
			for _, item := range g.items {
				r.results[item].Status = wire.StatusQueued
			}
			r.announce(g)
			g.items = nil
		case v.Status == store.PushDuplicate && len(v.Dups) > 0:
			if r.strip(ctx, g, v); len(g.items) > 0 {
				again = append(again, g)
			}
		default:
			r.fail(ctx, g, unexpected("duplicates", len(v.Dups), 1))
		}
	}
	return again
}

// announce tells waiting pops about a committed group.
func (r *request) announce(g *group) {
	r.Waker.Wake(r.tenant, g.queue, g.partition)
}

// strip settles the items that the window already holds and leaves the others
// for another submission.
func (r *request) strip(ctx context.Context, g *group, v *store.PushVerdict) {
	originals := r.originals(ctx, g, v)
	mine := false
	for n, d := range v.Dups {
		if d.Index < 0 || d.Index >= len(g.items) {
			continue
		}
		item := g.items[d.Index]
		res := &r.results[item]
		// Our own id in the log: an attempt whose answer was lost did commit.
		if originals[n] == res.MessageID {
			res.Status, mine = wire.StatusQueued, true
			continue
		}
		res.Status, res.MessageID = wire.StatusDuplicate, originals[n]
	}
	if mine {
		r.announce(g)
	}
	left := g.items[:0]
	for _, item := range g.items {
		if r.results[item].Status == "" {
			left = append(left, item)
		}
	}
	if len(left) == len(g.items) {
		r.fail(ctx, g, unexpected("usable duplicates", 0, 1))
		return
	}
	g.items, g.packed = left, false
}

// originals reads the message ids of stored duplicates, each covering segment
// once. The zero id stands for one that can no longer be read.
func (r *request) originals(ctx context.Context, g *group, v *store.PushVerdict) []uuid.UUID {
	ids := make([]uuid.UUID, len(v.Dups))
	order := make([]int, len(v.Dups))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(v.Dups[a].Offset, v.Dups[b].Offset) })
	for len(order) > 0 {
		first := v.Dups[order[0]].Offset
		seg, found, err := r.segmentAt(ctx, v.PartitionID, first)
		n := 1
		if found {
			for n < len(order) && v.Dups[order[n]].Offset <= seg.End {
				n++
			}
			err = r.idsOf(seg, v.Dups, order[:n], ids)
		}
		if err != nil {
			r.Logger.ErrorContext(ctx, "original of a duplicate not readable", slog.String(logging.KeyQueue, g.queue),
				slog.String(logging.KeyPartition, g.partition), slog.Int64(logging.KeyOffset, first), logging.Err(err))
		}
		order = order[n:]
	}
	return ids
}

// idsOf reads the ids of the duplicates that one segment covers, which order
// lists by ascending offset.
func (r *request) idsOf(seg store.Segment, dups []store.Dup, order []int, ids []uuid.UUID) error {
	start := int(dups[order[0]].Offset - seg.Base)
	take := int(dups[order[len(order)-1]].Offset-seg.Base) - start + 1
	next := 0
	return r.Reader.Unpack(seg.Blob, start, take, func(i int, f segment.Frame) error {
		for next < len(order) && dups[order[next]].Offset == seg.Base+int64(i) {
			ids[order[next]] = f.MessageID
			next++
		}
		return nil
	})
}

func (r *request) segmentAt(ctx context.Context, partition uuid.UUID, offset int64) (seg store.Segment, found bool, err error) {
	err = retry.Read(ctx, r.deadline, func(ctx context.Context) error {
		var err error
		seg, found, err = r.Store.SegmentAt(ctx, partition, offset)
		return err
	})
	return seg, found && err == nil, err
}
