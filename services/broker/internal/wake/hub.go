package wake

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// Tick is how long repeated wakes of one lane are folded into one. The first
// wake of a lane is delivered at once, so an idle lane pays nothing for it.
const Tick = 5 * time.Millisecond

// Topic says what a waiter waits for. A queue is a wildcard pop (Partition
// empty) or a pop of one partition; without a queue it is a discovery pop.
type Topic struct {
	Tenant    uuid.UUID
	Queue     string
	Partition string
	// Class tells interchangeable waiters apart from others of the same topic:
	// one wake is handed to one waiter of every class. For queue topics it is
	// the consumer group, for discovery the group with the labels.
	Class string
}

// place names a gate: a queue of a tenant, or with an empty queue the tenant.
type place struct {
	tenant uuid.UUID
	queue  string
}

// Hub connects announcements of new work with the waiters it concerns. An
// announcement is a hint: it says where to look, never that anything is there.
type Hub struct {
	mu     sync.Mutex
	gates  map[place]*gate
	closed bool
	done   chan struct{}
}

// NewHub returns an empty hub.
func NewHub() *Hub {
	return &Hub{gates: make(map[place]*gate), done: make(chan struct{})}
}

// Register adds a waiter, which is busy at first: register before looking for
// work.
func (h *Hub) Register(t Topic, owner Sleeper) *Waiter {
	w := &Waiter{hub: h, topic: t, owner: owner}
	h.mu.Lock()
	defer h.mu.Unlock()
	w.gate = h.gateOf(place{t.Tenant, t.Queue})
	w.class = w.gate.join(t)
	return w
}

// Wake announces that one lane of a queue may have become deliverable. An empty
// partition means that the lane is not known: whoever finds work wakes another.
// An empty queue reaches only the discovery waiters of the tenant.
func (h *Hub) Wake(tenant uuid.UUID, queue, partition string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if g := h.gates[place{tenant, queue}]; g != nil && queue != "" {
		g.ring(partition)
	}
	h.discover(tenant, queue, partition)
}

// Free announces that a lane of a queue is deliverable to a group again, to one of
// those that wait for any lane of the queue. It is not folded: a lane is freed once
// for each batch.
func (h *Hub) Free(tenant uuid.UUID, queue, group string) {
	h.signal(Topic{Tenant: tenant, Queue: queue, Class: group}, Lane)
}

// FreePinned announces the same to those that wait for this lane, and to those
// that wait for lanes of any queue.
func (h *Hub) FreePinned(tenant uuid.UUID, queue, partition, group string) {
	if partition != "" {
		h.signal(Topic{Tenant: tenant, Queue: queue, Partition: partition, Class: group}, Lane)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.discover(tenant, queue, partition)
	}
}

// discover wakes the waiters without a queue.
func (h *Hub) discover(tenant uuid.UUID, queue, partition string) {
	g := h.gates[place{tenant, ""}]
	if g == nil {
		return
	}
	lane := partition
	if partition != "" && queue != "" {
		// Lanes of different queues may share their partition name.
		lane = queue + "\x1f" + partition
	}
	g.ring(lane)
}

// Found wakes one waiter of a topic, after a re-check of the database.
func (h *Hub) Found(t Topic) { h.signal(t, Found) }

// signal wakes one waiter of a topic.
func (h *Hub) signal(t Topic, r Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gates[place{t.Tenant, t.Queue}]
	if g == nil || h.closed {
		return
	}
	if c := g.find(t); c != nil {
		c.signal(r)
	}
}

// Rouse wakes every waiter, and has those that are looking look again before they rest.
func (h *Hub) Rouse() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.gates {
		g.rouse()
	}
}

// Seize takes the waiter of a topic that has been idle longest, without waking it:
// the caller does its work. There is none when it does not suit, and when nobody is
// idle. suits is called with the hub locked.
func (h *Hub) Seize(t Topic, suits func(Sleeper) bool) Sleeper {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gates[place{t.Tenant, t.Queue}]
	if g == nil || h.closed {
		return nil
	}
	c := g.find(t)
	if c == nil || c.head == nil || !suits(c.head.owner) {
		return nil
	}
	w := c.head
	c.remove(w)
	w.idle, w.reason = false, 0
	return w.owner
}

// Done is closed when the hub is.
func (h *Hub) Done() <-chan struct{} { return h.done }

// Close ends the wait of every waiter, present and future: each idle one is
// notified, and none rests any more.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	close(h.done)
	for _, g := range h.gates {
		g.stop()
	}
}

func (h *Hub) gateOf(p place) *gate {
	g := h.gates[p]
	if g == nil {
		g = newGate(h, p)
		h.gates[p] = g
	}
	return g
}
