package lanes

import (
	"fmt"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/queenmq/queen/pkg/collector"
)

// SizeDefault is the number of lanes a Memo keeps: about 20 MB of names.
const SizeDefault = 65536

// Lane is a partition by name.
type Lane struct {
	Tenant    uuid.UUID
	Queue     string // empty when only the partition is known (discovery)
	Partition string
}

// Memo is a bounded memory of recently seen lanes. Partition ids are never
// reused, so an entry cannot become wrong, only useless. What it answers serves
// to wake waiters; a missing entry costs one step of their re-check.
type Memo struct {
	cache *lru.Cache[uuid.UUID, Lane]
}

// NewMemo returns a memo of the given size.
func NewMemo(size int) (*Memo, error) {
	c, err := lru.New[uuid.UUID, Lane](size)
	if err != nil {
		return nil, fmt.Errorf("create lane memo: %w", err)
	}
	return &Memo{cache: c}, nil
}

// Put remembers a lane. An entry that knows its queue is kept against one that
// does not.
func (m *Memo) Put(id uuid.UUID, lane Lane) {
	if known, ok := m.cache.Get(id); ok && (known == lane || lane.Queue == "") {
		return
	}
	m.cache.Add(id, lane)
}

// Get returns the lane of a partition id, if it is remembered. A nil memo remembers
// nothing.
func (m *Memo) Get(id uuid.UUID) (Lane, bool) {
	if m == nil {
		return Lane{}, false
	}
	return m.cache.Get(id)
}

// Queue is what the queue of a partition is counted under: its name where that is
// remembered, else the partition. A nil memo remembers nothing.
func (m *Memo) Queue(id uuid.UUID) collector.Key {
	if lane, ok := m.Get(id); ok && lane.Queue != "" {
		return collector.Queue(lane.Tenant, lane.Queue)
	}
	return collector.Lane(id)
}
