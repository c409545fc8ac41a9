package hints

import (
	"time"

	"github.com/google/uuid"
)

// Kind says what a hint is about. The numbers travel between versions: they are
// only ever added to.
type Kind uint8

// The kinds.
const (
	// Pushed: a lane has new messages (Tenant, Queue, Partition, Count). Without a
	// partition the lane is not known.
	Pushed Kind = iota + 1
	// CursorMoved: the cursor of a group went back (Tenant, Queue, Partition,
	// Group). Without a partition it did in the whole queue.
	CursorMoved
	// Released: a lease has ended (Tenant, PartitionID, Group, Full; Queue and
	// Partition where they are known).
	Released
	// TimerDue: a timer is due at At, which may be sooner than those known so far.
	TimerDue
	// QueueChanged: a queue was configured or deleted (Tenant, Queue, Deleted).
	QueueChanged
	// FlagsChanged: a switch in the database was flipped.
	FlagsChanged
	// Taken: a claim took messages from a lane (Tenant, Queue, Partition, Group,
	// Count, Emptied, Leased).
	Taken
	kinds
)

// String returns the name of the kind in metrics.
func (k Kind) String() string {
	names := [kinds]string{"unknown", "pushed", "cursor_moved", "released", "timer_due", "queue_changed", "flags_changed", "taken"}
	if k >= kinds {
		return names[0]
	}
	return names[k]
}

// Role is what a member does in the installation.
type Role string

// The roles.
const (
	Broker  Role = "broker"
	Sweeper Role = "sweeper"
)

// wants says which hints a member of the role can use. A role of a later version
// gets everything.
func (r Role) wants(k Kind) bool {
	switch {
	case k == FlagsChanged:
		return true
	case r == Broker:
		return k != TimerDue
	case r == Sweeper:
		return k == TimerDue
	}
	return true
}

// Hint is one message. Which fields count depends on the kind.
type Hint struct {
	Kind        Kind
	Tenant      uuid.UUID
	PartitionID uuid.UUID
	Queue       string
	Partition   string
	Group       string
	Count       int
	At          time.Time
	Full        bool // the whole batch of the lease was settled
	Deleted     bool
	Emptied     bool // the lane's last message was taken
	Leased      bool // not yet acknowledged
}

// key is what makes two hints the same; the rest is merged.
func (h Hint) key() Hint {
	h.Count, h.At = 0, time.Time{}
	return h
}

// merge takes in a later hint with the same key.
func (h *Hint) merge(other *Hint) {
	h.Count = min(h.Count+other.Count, maxCount)
	if other.At.Before(h.At) {
		h.At = other.At
	}
}
