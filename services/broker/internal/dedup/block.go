package dedup

import (
	"encoding/binary"
	"math/bits"
)

const (
	hashSize = 16

	// blockIDs is how many ids a sealed block holds, a longer row excepted. It
	// bounds what one positive answer of its filter costs: reading 16 KiB.
	blockIDs = 4096
	// groupBlocks is how many blocks share a filter once they are all sealed:
	// 14 million ids are 55 filters to ask, not 3500.
	groupBlocks = 64
)

// keyOf is the part of a hash that the open block remembers.
func keyOf(hash []byte) uint64 { return binary.BigEndian.Uint64(hash) }

// fingerprint is the part of a key that a sealed block remembers.
func fingerprint(key uint64) uint32 { return uint32(key >> 32) }

// bitmap marks the offsets of a block at which a row begins.
type bitmap []uint64

func (b bitmap) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }

// before is the last marked position at or before i.
func (b bitmap) before(i int) int {
	w := i / 64
	word := b[w] << (63 - i%64) >> (63 - i%64)
	for word == 0 && w > 0 {
		w--
		word = b[w]
	}
	return 64*w + bits.Len64(word) - 1
}

// after is the first marked position behind i, or n.
func (b bitmap) after(i, n int) int {
	i++
	for w := i / 64; w < len(b); w++ {
		word := b[w]
		if w == i/64 {
			word = word >> (i % 64) << (i % 64)
		}
		if word != 0 {
			return min(64*w+bits.TrailingZeros64(word), n)
		}
	}
	return n
}

func bitmapWords(n int) int { return (n + 63) / 64 }

// block is a run of whole rows that is not written any more. Its ids lie in
// offset order, so that the place of an id tells its offset.
type block struct {
	base   int64
	newest int64 // microseconds: the stamp of its last row, or a later one
	fps    []uint32
	starts bitmap
	filter *filter
}

func (b *block) bytes() int64 {
	const overhead = 96
	return overhead + 4*int64(cap(b.fps)) + 8*int64(cap(b.starts)) + filterBytes(b.filter)
}

// row is the row that covers position i.
func (b *block) row(i int) row {
	from := b.starts.before(i)
	return row{base: b.base + int64(from), frames: b.starts.after(i, len(b.fps)) - from}
}

// find appends the rows that may hold one of the ids.
func (b *block) find(q *query, fps []uint32) {
	q.block = q.block[:0]
	for _, fp := range fps {
		if mayHold(b.filter, fp) {
			q.block = append(q.block, fp)
		}
	}
	if len(q.block) == 0 {
		return
	}
	// One pass for all of them: a request that sends a thousand ids again finds
	// them in the same block.
	q.wanted.reset(q.block)
	for i, fp := range b.fps {
		if q.wanted.has(fp) {
			q.add(b.row(i))
		}
	}
}

// holds tells whether a row begins at base with these ids.
func (b *block) holds(base int64, hashes []byte) bool {
	i := int(base - b.base)
	n := len(hashes) / hashSize
	return b.starts.has(i) && i+n <= len(b.fps) &&
		b.fps[i] == fingerprint(keyOf(hashes)) && b.fps[i+n-1] == fingerprint(keyOf(hashes[len(hashes)-hashSize:]))
}

func (b *block) end() int64 { return b.base + int64(len(b.fps)) - 1 }

// group is a run of blocks. A full one has a filter for all of them, which stays
// as it is when the oldest blocks leave.
type group struct {
	blocks []*block
	filter *filter
	full   bool
}

func (g *group) find(q *query) {
	fps := q.fps
	if g.full {
		q.group = q.group[:0]
		for _, fp := range fps {
			if mayHold(g.filter, fp) {
				q.group = append(q.group, fp)
			}
		}
		fps = q.group
	}
	for i := len(g.blocks) - 1; i >= 0 && len(fps) > 0 && !q.overflow(); i-- {
		g.blocks[i].find(q, fps)
	}
}
