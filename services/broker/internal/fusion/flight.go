package fusion

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/dedup"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// flight is what is being written to one lane: one segment. One goroutine owns it.
type flight struct {
	lane  *lane
	parts []*Part
	bytes int
	// A refused flight is split; its pieces keep their root, which is over when
	// all of them are.
	root *flight
	open int
	// messages still to be stored, in order; repeats of an id are not among them.
	messages []*Message
	gathered bool
	// minted: every transaction id was minted for its request, and none was
	// submitted yet.
	minted    bool
	submitted bool
	packed    bool
	marked    bool // the segment carries a mark that no submission has used
	segment   store.PushSegment
}

// ctx carries the trace of the first request.
func (fl *flight) ctx() context.Context { return fl.parts[0].owner.ctx }

// deadline is that of the part that has most time left.
func (fl *flight) deadline() time.Time {
	var last time.Time
	for _, p := range fl.parts {
		if p.Deadline.After(last) {
			last = p.Deadline
		}
	}
	return last
}

// gather lists the messages of the parts. Of those that repeat a transaction id
// of an earlier request in the same segment the first is stored and the others
// share its fate, unless the queue keeps no window: then all are stored.
func (f *Fuser) gather(ctx context.Context, fl *flight) error {
	if fl.gathered {
		return nil
	}
	n := 0
	for _, p := range fl.parts {
		n += len(p.Messages)
	}
	fl.messages = make([]*Message, 0, n)
	var first map[string]*Message
	if len(fl.parts) > 1 && !fl.minted {
		first = make(map[string]*Message, n)
	}
	repeats := 0
	for _, p := range fl.parts {
		for i := range p.Messages {
			m := &p.Messages[i]
			fl.messages = append(fl.messages, m)
			if first == nil {
				continue
			}
			if m.follows = first[m.Frame.TransactionID]; m.follows == nil {
				first[m.Frame.TransactionID] = m
			} else {
				repeats++
			}
		}
	}
	if repeats > 0 {
		open, err := f.windowOpen(ctx, fl)
		if err != nil {
			return err
		}
		fl.fold(open)
	}
	fl.gathered = true
	return nil
}

// fold takes the followers off the list, or makes them independent.
func (fl *flight) fold(open bool) {
	kept := fl.messages[:0]
	for _, m := range fl.messages {
		if !open {
			m.follows = nil
		}
		if m.follows == nil {
			kept = append(kept, m)
		}
	}
	fl.messages = kept
}

// windowOpen tells whether the queue of a flight has a dedup window. A queue that
// does not exist yet will have the default one.
func (f *Fuser) windowOpen(ctx context.Context, fl *flight) (open bool, err error) {
	err = retry.Read(ctx, fl.deadline(), func(ctx context.Context) error {
		settings, found, err := f.Store.QueueSettings(ctx, fl.lane.Tenant, fl.lane.Queue)
		open = !found || settings.DedupWindow > 0
		return err
	})
	return open, err
}

// pack builds the segment of the messages that are left.
func (f *Fuser) pack(ctx context.Context, fl *flight) error {
	if fl.packed {
		return nil
	}
	if err := f.gather(ctx, fl); err != nil {
		return err
	}
	frames := f.frames.get(len(fl.messages))
	defer f.frames.put(frames)
	for _, m := range fl.messages {
		*frames = append(*frames, m.Frame)
	}
	blob, hashes, err := f.Packer.Pack(*frames)
	if err != nil {
		return err
	}
	fl.segment = store.PushSegment{
		Tenant: fl.lane.Tenant, Queue: fl.lane.Queue, Partition: fl.lane.Partition,
		Count: len(fl.messages), Hashes: hashes, Blob: blob,
	}
	fl.packed = true
	return nil
}

// tryMark says what is known of the flight's ids, if that takes no reading. It is
// asked anew for every submission.
func (f *Fuser) tryMark(fl *flight) bool {
	if fl.marked {
		return true
	}
	if fl.minted && !fl.submitted {
		fl.carry(dedup.Mark{PartitionID: f.known(fl.lane.Lane), Verified: store.VerifiedMinted})
		return true
	}
	m, ok := f.Marks.TryMark(fl.lane.Lane, fl.segment.Hashes)
	if ok {
		f.carry(fl, m)
	}
	return ok
}

// mark reads what tryMark does not know.
func (f *Fuser) mark(ctx context.Context, fl *flight) {
	f.carry(fl, f.Marks.Mark(ctx, fl.lane.Lane, fl.segment.Hashes))
}

func (f *Fuser) carry(fl *flight, m dedup.Mark) {
	if m.PartitionID == uuid.Nil {
		m.PartitionID = f.known(fl.lane.Lane)
	}
	fl.carry(m)
}

// carry makes a mark that of the next submission.
func (fl *flight) carry(m dedup.Mark) {
	s := &fl.segment
	s.PartitionID, s.Window, s.Verified, s.Suspects = m.PartitionID, m.Window, m.Verified, m.Suspects
	fl.marked = true
}

// split divides a refused flight. The second half follows the first.
func (fl *flight) split() (first, second *flight) {
	n := len(fl.messages) / 2
	first, second = new(flight), new(flight)
	*first, *second = *fl, *fl
	fl.root.open++
	first.messages, second.messages = fl.messages[:n:n], fl.messages[n:]
	first.packed, second.packed = false, false
	first.marked, second.marked = false, false
	return first, second
}

// fail settles what the flight has left.
func (fl *flight) fail(err error) {
	if !fl.gathered {
		for _, p := range fl.parts {
			p.fail(err)
		}
	}
	for _, m := range fl.messages {
		m.fail(err)
	}
	fl.messages = nil
}

// expire settles the messages of parts whose deadline has passed, and reports
// whether any are left.
func (fl *flight) expire(now time.Time, err error) (left bool) {
	if !fl.gathered {
		return true
	}
	for _, p := range fl.parts {
		if now.Before(p.Deadline) {
			continue
		}
		for i := range p.Messages {
			if p.Messages[i].follows == nil {
				p.Messages[i].fail(err)
			}
		}
	}
	kept := fl.messages[:0]
	for _, m := range fl.messages {
		if m.Outcome == Pending {
			kept = append(kept, m)
		}
	}
	if len(kept) < len(fl.messages) {
		fl.packed, fl.marked = false, false
	}
	fl.messages = kept
	return len(kept) > 0
}

// settle ends the parts of a flight: followers share the fate of their leaders.
func (fl *flight) settle() {
	for _, p := range fl.parts {
		for i := range p.Messages {
			p.Messages[i].follow()
		}
	}
	for _, p := range fl.parts {
		p.owner.finish()
	}
}

func (m *Message) follow() {
	if m.follows == nil {
		return
	}
	switch l := m.follows; l.Outcome {
	case Queued:
		m.Outcome, m.Original = Duplicate, l.Frame.MessageID
	case Duplicate:
		m.Outcome, m.Original = Duplicate, l.Original
	default:
		m.Outcome, m.Err = l.Outcome, l.Err
	}
}
