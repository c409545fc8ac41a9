package announce

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/services/broker/internal/hotlist"
)

// Announcer announces what this broker has committed. It is safe for concurrent
// use; its fields are set before the first.
type Announcer struct {
	Local
	// Peers is nil while there is no pool.
	Peers Peers
	// Timers hear of every timer; nil: nobody does.
	Timers Timers
	told   promise
}

// Timers hear when timers are due that this broker has scheduled. They neither block
// nor take long.
type Timers interface{ Due(in time.Duration) }

// Peers are the other processes. They are told what this one has done, never
// what it was told; Rank is the place of this broker among them. No method blocks.
type Peers interface {
	Pushed(tenant uuid.UUID, queue, partition string, count int)
	Taken(t hotlist.Taking)
	Rank(lane uint64) int
	Released(r Release)
	CursorMoved(tenant uuid.UUID, queue, partition, group string)
	QueueChanged(tenant uuid.UUID, queue string, deleted bool)
	TimerDue(at time.Time)
	FlagsChanged()
}

// Release is a lease that has ended.
type Release struct {
	Tenant      uuid.UUID
	PartitionID uuid.UUID
	Group       string
	Queue       string // empty when it is not known
	Partition   string
	// Full says that the whole batch was settled. Otherwise messages of it are
	// to be delivered again.
	Full bool
}

// Pushed announces that a push has stored count messages in a lane.
func (a *Announcer) Pushed(tenant uuid.UUID, queue, partition string, count int) {
	a.Local.Pushed(tenant, queue, partition, count)
	if a.Peers != nil {
		a.Peers.Pushed(tenant, queue, partition, count)
	}
}

// Wake announces that a lane has become deliverable by something else than a
// push: a transaction, a replay, a timer. An empty partition says that the lane
// is not known.
func (a *Announcer) Wake(tenant uuid.UUID, queue, partition string) {
	a.Marked(tenant, queue, partition, 1)
	if a.Peers != nil && queue != "" {
		a.Peers.Pushed(tenant, queue, partition, 1)
	}
}

// Taken announces what a claim of this broker took. Here the hot list knows.
func (a *Announcer) Taken(t hotlist.Taking) {
	if a.Peers != nil {
		a.Peers.Taken(t)
	}
}

// Rank is how many other brokers come before this one in the order of a lane.
func (a *Announcer) Rank(lane uint64) int {
	if a.Peers == nil {
		return 0
	}
	return a.Peers.Rank(lane)
}

// Released announces that a lease has ended; full says that its whole batch was
// settled. The names are empty when the caller does not know them.
func (a *Announcer) Released(tenant, partitionID uuid.UUID, group, queue, partition string, full bool) {
	r := a.named(Release{
		Tenant: tenant, PartitionID: partitionID, Group: group, Queue: queue, Partition: partition, Full: full,
	})
	a.Local.Released(r)
	if a.Peers != nil {
		a.Peers.Released(r)
	}
}

// CursorMoved announces that the cursor of a group went back: in one lane, or
// with an empty partition in every lane of the queue.
func (a *Announcer) CursorMoved(tenant uuid.UUID, queue, partition, group string) {
	a.Local.CursorMoved(tenant, queue, partition, group)
	if a.Peers != nil {
		a.Peers.CursorMoved(tenant, queue, partition, group)
	}
}

// CursorsMoved announces that the cursors of a group have moved in all of a queue. Here
// the hot list looks at once, and the caller waits for it: after an error pops may
// notice late.
func (a *Announcer) CursorsMoved(ctx context.Context, tenant uuid.UUID, queue, group string) (err error) {
	if a.Peers != nil {
		a.Peers.CursorMoved(tenant, queue, "", group)
	}
	if a.HotList != nil {
		err = a.HotList.Repair(ctx, tenant, queue, group)
	}
	a.Waker.Wake(tenant, queue, "")
	return err
}

// GroupDeleted announces that the cursors of a group in a queue are gone. Peers find
// that out when they look.
func (a *Announcer) GroupDeleted(tenant uuid.UUID, queue, group string) {
	if a.HotList != nil {
		a.HotList.DropGroup(tenant, queue, group)
	}
	a.Waker.Wake(tenant, queue, "")
	if a.Peers != nil {
		a.Peers.CursorMoved(tenant, queue, "", group)
	}
}

// QueueChanged announces that a queue was configured or deleted.
func (a *Announcer) QueueChanged(tenant uuid.UUID, queue string, deleted bool) {
	a.Local.QueueChanged(tenant, queue, deleted)
	if a.Peers != nil {
		a.Peers.QueueChanged(tenant, queue, deleted)
	}
}

// TimerDue announces timers that were scheduled: the nearest is due at an instant of
// the database's clock, which is in from now. Sweepers are told unless they know an
// earlier one that is still to come: a million timers for next week are one hint.
// One that was lost costs what a sweeper may sleep.
func (a *Announcer) TimerDue(at time.Time, in time.Duration) {
	if a.Timers != nil {
		a.Timers.Due(in)
	}
	if a.Peers != nil && a.told.nearer(in) {
		a.Peers.TimerDue(at)
	}
}

// FlagsChanged announces that a switch in the database was flipped.
func (a *Announcer) FlagsChanged() {
	a.Local.FlagsChanged()
	if a.Peers != nil {
		a.Peers.FlagsChanged()
	}
}
