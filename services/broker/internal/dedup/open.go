package dedup

// open is the block that rows are still added to. It remembers 64 bits of each
// hash and finds them through a small table.
type open struct {
	base   int64
	newest int64
	keys   []uint64
	starts bitmap
	index  []uint16 // open addressing: position + 1 of the newest of a key, 0 for none
	older  []uint16 // by position: the one before with the same key, likewise
}

func (o *open) bytes() int64 {
	return 8*int64(cap(o.keys)) + 8*int64(cap(o.starts)) + 2*int64(cap(o.index)) + 2*int64(cap(o.older))
}

func (o *open) end() int64 { return o.base + int64(len(o.keys)) - 1 }

// append adds a row right behind the others, or the first.
func (o *open) append(base int64, hashes []byte, at int64) {
	if len(o.keys) == 0 {
		o.base = base
	}
	n := len(o.keys)
	for words := bitmapWords(n + len(hashes)/hashSize); len(o.starts) < words; {
		o.starts = append(o.starts, 0)
	}
	o.starts.set(n)
	for ; len(hashes) > 0; hashes = hashes[hashSize:] {
		o.keys = append(o.keys, keyOf(hashes))
	}
	o.newest = max(o.newest, at)
	if 2*len(o.keys) > len(o.index) {
		size := max(len(o.index), 16)
		for size < 2*len(o.keys) {
			size *= 2
		}
		o.index, n = make([]uint16, size), 0
	}
	for o.older = o.older[:n]; n < len(o.keys); n++ {
		slot := o.slot(o.keys[n])
		o.older = append(o.older, o.index[slot])
		o.index[slot] = uint16(n + 1)
	}
}

// slot is where a key is, or would be.
func (o *open) slot(key uint64) int {
	slot := int(key & uint64(len(o.index)-1))
	for o.index[slot] != 0 && o.keys[o.index[slot]-1] != key {
		slot = (slot + 1) & (len(o.index) - 1)
	}
	return slot
}

func (o *open) find(q *query) {
	if len(o.keys) == 0 {
		return
	}
	for _, key := range q.keys {
		for at := int(o.index[o.slot(key)]); at != 0; at = int(o.older[at-1]) {
			from := o.starts.before(at - 1)
			q.add(row{base: o.base + int64(from), frames: o.starts.after(at-1, len(o.keys)) - from})
		}
	}
}

func (o *open) holds(base int64, hashes []byte) bool {
	i := int(base - o.base)
	n := len(hashes) / hashSize
	return o.starts.has(i) && i+n <= len(o.keys) &&
		o.keys[i] == keyOf(hashes) && o.keys[i+n-1] == keyOf(hashes[len(hashes)-hashSize:])
}

// seal makes a block of what is there; its own memory is used again.
func (o *open) seal(p *builders) *block {
	b := &block{base: o.base, newest: o.newest, fps: make([]uint32, len(o.keys)), starts: append(bitmap(nil), o.starts...)}
	for i, key := range o.keys {
		b.fps[i] = fingerprint(key)
	}
	b.filter = p.build(func(yield func([]uint32)) { yield(b.fps) }, len(b.fps))
	o.keys, o.starts, o.older, o.newest = o.keys[:0], o.starts[:0], o.older[:0], 0
	clear(o.index)
	return b
}
