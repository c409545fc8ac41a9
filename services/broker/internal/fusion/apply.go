package fusion

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/retry"
	"github.com/queenmq/queen/services/broker/internal/tails"
)

// apply gives the flights of an answered bundle their verdicts. It returns those
// to be submitted again without their duplicates, and those whose lane is held.
func (w *writer) apply(flights []*flight, verdicts []store.PushVerdict) (again, held []*flight) {
	over := flights[:0:0]
	if len(verdicts) != len(flights) {
		for _, fl := range flights {
			w.refuse(fl, fmt.Errorf("unexpected answer of the database: %d verdicts for %d segments", len(verdicts), len(flights)))
		}
		w.land(flights...)
		return nil, nil
	}
	for i, fl := range flights {
		v := &verdicts[i]
		w.ids.Add(w.hash(fl.lane.Lane), v.PartitionID)
		switch {
		case v.Status == store.PushQueued:
			w.stored(fl, v)
			over = append(over, fl)
		case v.Status == store.PushBusy:
			fl.submitted = false // the database has not looked at it
			held = append(held, fl)
		case v.Status == store.PushDuplicate && w.strip(fl, v):
			again = append(again, fl)
		default:
			if len(fl.messages) > 0 {
				w.refuse(fl, fmt.Errorf("unexpected answer of the database: status %q", v.Status))
			}
			over = append(over, fl)
		}
	}
	w.land(over...)
	return again, held
}

// stored settles the messages of a committed segment and announces them.
func (w *writer) stored(fl *flight, v *store.PushVerdict) {
	for _, m := range fl.messages {
		m.Outcome = Queued
	}
	w.Marks.Wrote(fl.lane.Lane, v.PartitionID, v.BaseOffset, v.CreatedAt, fl.segment.Hashes)
	w.Tails.Wrote(v.PartitionID, tails.Segment{Base: v.BaseOffset, Count: fl.segment.Count, CreatedAt: v.CreatedAt, Blob: fl.segment.Blob})
	w.Announcer.Pushed(fl.lane.Tenant, fl.lane.Queue, fl.lane.Partition, len(fl.messages))
	fl.messages = nil
}

// strip settles the messages that the window already holds and reports whether
// others are left for another submission.
func (w *writer) strip(fl *flight, v *store.PushVerdict) (left bool) {
	originals := w.originals(fl, v)
	mine := 0
	for n, d := range v.Dups {
		if d.Index < 0 || d.Index >= len(fl.messages) {
			continue
		}
		m := fl.messages[d.Index]
		// Our own id in the log: an attempt whose answer was lost did commit.
		if originals[n] == m.Frame.MessageID {
			m.Outcome = Queued
			mine++
			continue
		}
		m.Outcome, m.Original = Duplicate, originals[n]
	}
	if mine > 0 {
		w.Announcer.Pushed(fl.lane.Tenant, fl.lane.Queue, fl.lane.Partition, mine)
	}
	before := len(fl.messages)
	fl.messages = slices.DeleteFunc(fl.messages, func(m *Message) bool { return m.Outcome != Pending })
	fl.packed, fl.marked = false, false
	if len(fl.messages) == before {
		w.refuse(fl, fmt.Errorf("unexpected answer of the database: %q without usable duplicates", v.Status))
	}
	return len(fl.messages) > 0
}

// originals reads the message ids of stored duplicates, each covering segment
// once. The zero id stands for one that can no longer be read.
func (w *writer) originals(fl *flight, v *store.PushVerdict) []uuid.UUID {
	ids := make([]uuid.UUID, len(v.Dups))
	order := make([]int, len(v.Dups))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(v.Dups[a].Offset, v.Dups[b].Offset) })
	for len(order) > 0 {
		first := v.Dups[order[0]].Offset
		seg, found, err := w.segmentAt(fl, v.PartitionID, first)
		n := 1
		if found {
			for n < len(order) && v.Dups[order[n]].Offset <= seg.End {
				n++
			}
			err = w.idsOf(seg, v.Dups, order[:n], ids)
		}
		if err != nil {
			w.Logger.ErrorContext(w.ctx, "original of a duplicate not readable", slog.String(logging.KeyQueue, fl.lane.Queue),
				slog.String(logging.KeyPartition, fl.lane.Partition), slog.Int64(logging.KeyOffset, first), logging.Err(err))
		}
		order = order[n:]
	}
	return ids
}

// idsOf reads the ids of the duplicates that one segment covers, which order
// lists by ascending offset.
func (w *writer) idsOf(seg store.Segment, dups []store.Dup, order []int, ids []uuid.UUID) error {
	start := int(dups[order[0]].Offset - seg.Base)
	take := int(dups[order[len(order)-1]].Offset-seg.Base) - start + 1
	next := 0
	return w.Reader.Unpack(seg.Blob, start, take, func(i int, f segment.Frame) error {
		for next < len(order) && dups[order[next]].Offset == seg.Base+int64(i) {
			ids[order[next]] = f.MessageID
			next++
		}
		return nil
	})
}

func (w *writer) segmentAt(fl *flight, partition uuid.UUID, offset int64) (seg store.Segment, found bool, err error) {
	err = retry.Read(w.ctx, fl.deadline(), func(ctx context.Context) error {
		var err error
		seg, found, err = w.Store.SegmentAt(ctx, partition, offset)
		return err
	})
	return seg, found && err == nil, err
}
