package registry

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"sync"
)

const hashSize = 16

// sum is a number modulo 2^128.
type sum struct{ hi, lo uint64 }

func (s *sum) add(o sum) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, o.lo, 0)
	s.hi, _ = bits.Add64(s.hi, o.hi, carry)
}

// mixer turns hashes into numbers that nobody outside of this process can
// predict. Equal numbers mean equal hashes.
type mixer struct {
	block   cipher.Block
	scratch sync.Pool
}

// scratch is the working memory of one digest.
type scratch struct {
	out   [hashSize]byte
	mixed []sum
	slots []uint32 // positions in mixed, counted from 1, by their low bits
}

func newMixer() *mixer {
	key := make([]byte, 16)
	_, _ = rand.Read(key)          // never fails
	block, _ := aes.NewCipher(key) // fails for other lengths only
	return &mixer{block: block, scratch: sync.Pool{New: func() any { return new(scratch) }}}
}

func (m *mixer) mix(s *scratch, hash []byte) sum {
	m.block.Encrypt(s.out[:], hash)
	return sum{binary.BigEndian.Uint64(s.out[:8]), binary.BigEndian.Uint64(s.out[8:])}
}

// distinct digests concatenated hashes; ok tells whether no two are equal.
func (m *mixer) distinct(hashes []byte) (total sum, ok bool) {
	s := m.scratch.Get().(*scratch)
	defer m.scratch.Put(s)
	s.reset(len(hashes) / hashSize)
	for i := 0; i < len(hashes); i += hashSize {
		v := m.mix(s, hashes[i:i+hashSize])
		if !s.insert(v) {
			return sum{}, false
		}
		total.add(v)
	}
	return total, true
}

// digest is the sum of hashes, repeated ones counted repeatedly.
func (m *mixer) digest(hashes [][hashSize]byte) (total sum) {
	s := m.scratch.Get().(*scratch)
	defer m.scratch.Put(s)
	for i := range hashes {
		total.add(m.mix(s, hashes[i][:]))
	}
	return total
}

// reset empties the table and makes it at least twice as large as n.
func (s *scratch) reset(n int) {
	size := 4
	for size < 2*n {
		size *= 2
	}
	if cap(s.slots) < size {
		s.slots = make([]uint32, size)
	}
	s.slots = s.slots[:size]
	clear(s.slots)
	s.mixed = s.mixed[:0]
}

// insert reports whether v is new to the table.
func (s *scratch) insert(v sum) bool {
	mask := uint64(len(s.slots) - 1)
	at := v.lo & mask
	for ; s.slots[at] != 0; at = (at + 1) & mask {
		if s.mixed[s.slots[at]-1] == v {
			return false
		}
	}
	s.mixed = append(s.mixed, v)
	s.slots[at] = uint32(len(s.mixed))
	return true
}
