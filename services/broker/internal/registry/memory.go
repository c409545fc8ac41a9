package registry

import (
	"math"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// memory is a part of the registry under one lock: what was used longest ago
// goes when its bytes are used up.
type memory[K comparable, V any] struct {
	mu    sync.Mutex
	items *simplelru.LRU[K, item[V]]
	bytes int64 // of all items
	limit int64
	swept time.Time
}

type item[V any] struct {
	value   V
	bytes   int64
	expires time.Time
}

func newMemory[K comparable, V any](limit int64, now time.Time) *memory[K, V] {
	m := &memory[K, V]{limit: limit, swept: now}
	// Bytes are the bound, not the number of items; only a size below 1 is an error.
	m.items, _ = simplelru.NewLRU(math.MaxInt, func(_ K, it item[V]) { m.bytes -= it.bytes })
	return m
}

func (m *memory[K, V]) put(k K, v V, bytes int64, now, expires time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(k, item[V]{v, bytes, expires}, now)
}

// set stores an item and makes room for it.
func (m *memory[K, V]) set(k K, it item[V], now time.Time) {
	m.items.Remove(k) // Add would not tell that it replaced one
	m.items.Add(k, it)
	m.bytes += it.bytes
	if now.Sub(m.swept) >= sweepEvery {
		m.sweep(now)
	}
	for m.bytes > m.limit {
		if _, _, ok := m.items.RemoveOldest(); !ok {
			return
		}
	}
}

func (m *memory[K, V]) sweep(now time.Time) {
	m.swept = now
	for _, k := range m.items.Keys() {
		if it, ok := m.items.Peek(k); ok && !now.Before(it.expires) {
			m.items.Remove(k)
		}
	}
}

func (m *memory[K, V]) get(k K, now time.Time) (it item[V], ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	it, ok = m.items.Get(k)
	return it, ok && now.Before(it.expires)
}

// restore stores an item where there is none.
func (m *memory[K, V]) restore(k K, it item[V], now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.items.Contains(k) {
		m.set(k, it, now)
	}
}

// view shows an item that has not expired while nobody changes it.
func (m *memory[K, V]) view(k K, now time.Time, see func(V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if it, ok := m.items.Get(k); ok && now.Before(it.expires) {
		see(it.value)
	}
}

// take removes an item if it is still the one that is meant.
func (m *memory[K, V]) take(k K, meant func(V) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	it, ok := m.items.Peek(k)
	return ok && meant(it.value) && m.items.Remove(k)
}

func (m *memory[K, V]) drop(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.items.Remove(k)
}

// change replaces an item by what edit makes of it; one that costs nothing is
// removed. With an expiry it is created when missing, and lives at least as long.
func (m *memory[K, V]) change(k K, now, expires time.Time, edit func(V) (V, int64)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	it, ok := m.items.Peek(k)
	if !ok && expires.IsZero() {
		return
	}
	if it.expires.Before(expires) {
		it.expires = expires
	}
	if it.value, it.bytes = edit(it.value); it.bytes == 0 {
		m.items.Remove(k)
		return
	}
	m.set(k, it, now)
}

// size is the bytes of all items.
func (m *memory[K, V]) size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}
