package announce

import (
	"context"

	"github.com/google/uuid"

	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/lanes"
)

// Local is what an announcement does in this process, wherever it comes from.
// Every field but Waker may be nil; a nil pointer must not hide in one.
type Local struct {
	HotList HotList
	Waker   Waker
	Lanes   Lanes
	// Caches remember something about queues.
	Caches []QueueCache
	// Switches are what operators allow and hold back.
	Switches []Switches
}

// HotList is the memory of lanes that may have work. It wakes the waiting pops
// of the lanes that it makes ready.
type HotList interface {
	// Pushed marks a lane in every group; waking is folded into the next tick.
	Pushed(tenant uuid.UUID, queue, partition string, count int)
	// Mark marks a lane in every group and wakes at once.
	Mark(tenant uuid.UUID, queue, partition string, count int)
	// MarkGroup marks a lane in one group.
	MarkGroup(tenant uuid.UUID, queue, partition, group string)
	// Taken notes what another broker has claimed.
	Taken(t hotlist.Taking)
	// Repair derives the ring of a group anew whose cursors have moved, DropGroup
	// forgets it.
	Repair(ctx context.Context, tenant uuid.UUID, queue, group string) error
	DropGroup(tenant uuid.UUID, queue, group string)
	// Promote ends the wait for the lease of a group on a partition.
	Promote(partition uuid.UUID, group string)
	// Changed has the settings of a queue read again, DropQueue forgets it.
	Changed(tenant uuid.UUID, queue string)
	DropQueue(tenant uuid.UUID, queue string)
}

// Waker wakes the pops that wait in this process.
type Waker interface {
	Wake(tenant uuid.UUID, queue, partition string)
	// FreePinned wakes only those whom the hot list does not serve.
	FreePinned(tenant uuid.UUID, queue, partition, group string)
}

// Lanes knows partitions by name.
type Lanes interface {
	Get(partition uuid.UUID) (lanes.Lane, bool)
}

// QueueCache is told to forget what it remembers about a queue.
type QueueCache interface {
	QueueChanged(tenant uuid.UUID, queue string, deleted bool)
}

// Switches are read from the database at intervals, and when kicked.
type Switches interface{ Kick() }

// Pushed is for messages that this process or a peer has stored.
func (l *Local) Pushed(tenant uuid.UUID, queue, partition string, count int) {
	if l.HotList != nil {
		l.HotList.Pushed(tenant, queue, partition, count)
		return
	}
	l.Waker.Wake(tenant, queue, partition)
}

// Marked is for messages that have come in any other way. Without a queue only
// the pops that look for any queue are woken.
func (l *Local) Marked(tenant uuid.UUID, queue, partition string, count int) {
	if l.HotList != nil && queue != "" {
		l.HotList.Mark(tenant, queue, partition, count)
		return
	}
	l.Waker.Wake(tenant, queue, partition)
}

// Taken is for what another process has claimed.
func (l *Local) Taken(t hotlist.Taking) {
	if l.HotList != nil {
		l.HotList.Taken(t)
	}
}

// Released ends the wait of everybody whom the lease kept from the lane. The
// hot list alone would not do: it does not know the lanes that only pops of
// one partition use.
func (l *Local) Released(r Release) {
	r = l.named(r)
	if l.HotList != nil {
		l.promote(r)
	}
	switch {
	case r.Queue == "" && r.Partition == "":
	case l.HotList != nil:
		l.Waker.FreePinned(r.Tenant, r.Queue, r.Partition, r.Group)
	default:
		l.Waker.Wake(r.Tenant, r.Queue, r.Partition)
	}
}

// promote makes a lane ready at once instead of when the lease would have
// expired. After a lease that settled everything the hot list decides whether
// there is more. One that did not has left messages, which the list must be told
// first; in a lane without a name they are found when the lease was to expire.
func (l *Local) promote(r Release) {
	if !r.Full {
		if r.Queue == "" || r.Partition == "" {
			return
		}
		l.HotList.MarkGroup(r.Tenant, r.Queue, r.Partition, r.Group)
	}
	l.HotList.Promote(r.PartitionID, r.Group)
}

// named fills in the names where they are remembered.
func (l *Local) named(r Release) Release {
	if l.Lanes == nil || r.Queue != "" {
		return r
	}
	if lane, ok := l.Lanes.Get(r.PartitionID); ok && lane.Tenant == r.Tenant {
		r.Queue, r.Partition = lane.Queue, lane.Partition
	}
	return r
}

// CursorMoved marks what a group has before it again.
func (l *Local) CursorMoved(tenant uuid.UUID, queue, partition, group string) {
	if l.HotList != nil {
		l.HotList.MarkGroup(tenant, queue, partition, group)
	}
	l.Waker.Wake(tenant, queue, partition)
}

// QueueChanged drops what is remembered about a queue and wakes its pops: what
// they wait for may have become visible. They look after the caches are clear.
func (l *Local) QueueChanged(tenant uuid.UUID, queue string, deleted bool) {
	for _, c := range l.Caches {
		c.QueueChanged(tenant, queue, deleted)
	}
	switch {
	case l.HotList == nil:
	case deleted:
		l.HotList.DropQueue(tenant, queue)
	default:
		l.HotList.Changed(tenant, queue)
	}
	l.Waker.Wake(tenant, queue, "")
}

// FlagsChanged has the switches read again.
func (l *Local) FlagsChanged() {
	for _, s := range l.Switches {
		s.Kick()
	}
}
