package dedup

import "slices"

// memory is what is remembered of one lane: all ids of a run of offsets, the
// newest in the open block, the others in groups of sealed ones.
type memory struct {
	groups []*group
	open   open
	newest int64 // stamp of the newest row, in microseconds
	sealed int64 // bytes of the groups
}

func (m *memory) bytes() int64 { return m.sealed + m.open.bytes() }

// append adds a row behind all others. A hole in front of it is no matter: what
// was never stored, or was purged, is in no window.
func (m *memory) append(p *builders, base int64, hashes []byte, at int64) {
	n := len(hashes) / hashSize
	if held := len(m.open.keys); held > 0 && (held+n > blockIDs || base != m.open.end()+1) {
		m.add(p, m.open.seal(p))
	}
	m.newest = max(m.newest, at)
	if n <= blockIDs {
		m.open.append(base, hashes, at)
		return
	}
	// A row longer than a block is one by itself.
	long := open{index: make([]uint16, 1)}
	long.base, long.newest, long.starts = base, at, make(bitmap, bitmapWords(n))
	long.starts.set(0)
	long.keys = make([]uint64, 0, n)
	for ; len(hashes) > 0; hashes = hashes[hashSize:] {
		long.keys = append(long.keys, keyOf(hashes))
	}
	m.add(p, long.seal(p))
}

func (m *memory) add(p *builders, b *block) {
	if len(m.groups) == 0 || m.groups[len(m.groups)-1].full {
		m.groups = append(m.groups, &group{})
		m.sealed += groupOverhead
	}
	g := m.groups[len(m.groups)-1]
	g.blocks = append(g.blocks, b)
	m.sealed += b.bytes()
	if len(g.blocks) < groupBlocks {
		return
	}
	n := 0
	for _, b := range g.blocks {
		n += len(b.fps)
	}
	g.full = true
	g.filter = p.build(func(yield func([]uint32)) {
		for _, b := range g.blocks {
			yield(b.fps)
		}
	}, n)
	m.sealed += filterBytes(g.filter)
}

const groupOverhead = 64 + 8*groupBlocks

// expire drops the blocks whose rows are all older than before, in microseconds.
func (m *memory) expire(before int64) {
	for len(m.groups) > 0 {
		g := m.groups[0]
		for len(g.blocks) > 0 && g.blocks[0].newest < before {
			m.sealed -= g.blocks[0].bytes()
			g.blocks[0] = nil
			g.blocks = g.blocks[1:]
		}
		if len(g.blocks) > 0 {
			return
		}
		m.sealed -= groupOverhead + filterBytes(g.filter)
		m.groups[0] = nil
		m.groups = m.groups[1:]
	}
	if len(m.open.keys) > 0 && m.open.newest < before {
		m.open = open{}
	}
}

// find gathers the rows that may hold one of the ids, the newest first.
func (m *memory) find(q *query) {
	m.open.find(q)
	for i := len(m.groups) - 1; i >= 0 && !q.overflow(); i-- {
		m.groups[i].find(q)
	}
}

// holds tells whether the row at base is remembered with these hashes, or is
// older than the memory reaches.
func (m *memory) holds(base int64, hashes []byte) bool {
	if len(m.open.keys) > 0 && base >= m.open.base {
		return base <= m.open.end() && m.open.holds(base, hashes)
	}
	for _, g := range slices.Backward(m.groups) {
		for _, b := range slices.Backward(g.blocks) {
			if base >= b.base {
				return base <= b.end() && b.holds(base, hashes)
			}
		}
	}
	return true
}
