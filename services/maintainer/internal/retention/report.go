package retention

import (
	"bytes"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/store"
)

// Names of the phases, in their order.
const (
	PhaseRetention = "retention"
	PhaseTxns      = "txns"
	PhaseEviction  = "eviction"
	PhaseCleanup   = "cleanup"
	PhaseMetrics   = "metrics"
	PhaseWalk      = "walk"
)

// Report is what one cycle did, or with DryRun what one would do.
type Report struct {
	Began   time.Time
	Elapsed time.Duration
	Phases  []Phase // those that ran, in their order
	Queues  []Queue // those whose lanes were looked at, ascending by name
}

// Phase is what one phase of a cycle did.
type Phase struct {
	Name    string
	Elapsed time.Duration
	Queues  int64 // with something due
	Lanes   int64 // that a step was made on
	// Segments, Messages and Bytes are what retention and eviction deleted.
	Segments, Messages, Bytes int64
	// Rows are the sidecar rows of txns, the partitions of cleanup, the rows of
	// metrics and the watermarks that walk repaired.
	Rows     int64
	Held     int64 // lanes that are due and held by a slow group
	TimedOut int64 // steps that did not get their lock, or took too long
	Failed   int64 // lanes whose step failed, and 1 for a phase that was given up
	// Unfinished says that the rest was left to the next cycle.
	Unfinished bool
}

// Queue is the part of one queue in a cycle.
type Queue struct {
	ID                        uuid.UUID
	Name                      string
	Segments, Messages, Bytes int64 // deleted by the two retention rules
	Evicted                   int64 // messages that waited too long
	SidecarRows               int64
	Held                      int64 // lanes
}

// Phase returns what the phase of that name did; nothing when it did not run.
func (r Report) Phase(name string) Phase {
	i := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Name == name })
	if i < 0 {
		return Phase{Name: name}
	}
	return r.Phases[i]
}

// Deleted tells whether the cycle deleted anything.
func (r Report) Deleted() bool {
	return slices.ContainsFunc(r.Phases, func(p Phase) bool { return p.Name != PhaseWalk && p.deleted() })
}

// backlog tells whether a phase yielded in the middle of deleting.
func (r Report) backlog() bool {
	return slices.ContainsFunc(r.Phases, func(p Phase) bool { return p.Unfinished && p.deleted() })
}

func (p Phase) deleted() bool { return p.Segments > 0 || p.Rows > 0 }

// add counts what a phase of the same name did at another time.
func (p *Phase) add(other Phase) {
	p.Lanes += other.Lanes
	p.Segments += other.Segments
	p.Messages += other.Messages
	p.Bytes += other.Bytes
	p.TimedOut += other.TimedOut
	p.Failed += other.Failed
}

// tally collects the parts of the queues while a cycle goes on.
type tally map[uuid.UUID]*Queue

func (t tally) of(q store.QueuePlan) *Queue {
	part, ok := t[q.Queue]
	if !ok {
		part = &Queue{ID: q.Queue, Name: q.Name}
		t[q.Queue] = part
	}
	return part
}

func (t tally) sorted() []Queue {
	out := make([]Queue, 0, len(t))
	for _, part := range t {
		out = append(out, *part)
	}
	slices.SortFunc(out, func(a, b Queue) int {
		if a.Name != b.Name { // two tenants may use one name
			return bytes.Compare([]byte(a.Name), []byte(b.Name))
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	return out
}
