package hints

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// batchLimit bounds the hints that wait for a flush.
const batchLimit = 200_000

// batch is a bounded queue without duplicates.
type batch struct {
	mu    sync.Mutex
	limit int
	list  []Hint
	index map[Hint]int // key -> position in list, counted from base
	base  int
	ready chan struct{} // holds a token while the batch may hold something
}

func newBatch(limit int) *batch {
	return &batch{limit: limit, index: make(map[Hint]int), ready: make(chan struct{}, 1)}
}

// add reports false when the batch is full.
func (b *batch) add(h *Hint) bool {
	key := h.key()
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, ok := b.index[key]; ok {
		b.list[i-b.base].merge(h)
		return true
	}
	if len(b.list) >= b.limit {
		return false
	}
	b.index[key] = b.base + len(b.list)
	b.list = append(b.list, *h)
	if len(b.list) == 1 {
		b.signal()
	}
	return true
}

func (b *batch) signal() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take moves the oldest hints into a slice, those of one queue side by side: as
// many as the budget of bytes covers, and one at least.
func (b *batch) take(budget int, into []Hint) []Hint {
	b.mu.Lock()
	n := 0
	for n < len(b.list) && budget > 0 {
		budget -= b.list[n].size()
		n++
	}
	into = append(into[:0], b.list[:n]...)
	for i := range into {
		delete(b.index, into[i].key())
	}
	b.base += n
	if b.list = b.list[n:]; len(b.list) == 0 {
		b.list, b.base = nil, 0 // a burst's memory is not kept
	}
	b.mu.Unlock()
	slices.SortStableFunc(into, func(x, y Hint) int {
		if c := bytes.Compare(x.Tenant[:], y.Tenant[:]); c != 0 {
			return c
		}
		return strings.Compare(x.Queue, y.Queue)
	})
	return into
}

func (b *batch) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.list)
}
