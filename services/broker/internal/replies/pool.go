package replies

import (
	"math/bits"
	"sync"
)

// Buffers are pooled by size, in powers of two, so that a small body never pins a
// large buffer. Larger ones are left to the collector.
const (
	smallestBits = 12
	largestBits  = 22
)

// Pool lends buffers. A nil one makes them. It is safe for concurrent use.
type Pool struct {
	classes [largestBits - smallestBits + 1]sync.Pool // of *[]byte
}

// Get returns an empty buffer with room for n bytes.
func (p *Pool) Get(n int) []byte {
	class := max(bits.Len(uint(max(n, 1)-1)), smallestBits)
	if p == nil || class > largestBits {
		return make([]byte, 0, n)
	}
	if buf, ok := p.classes[class-smallestBits].Get().(*[]byte); ok {
		return (*buf)[:0]
	}
	return make([]byte, 0, 1<<class)
}

// Put takes a buffer back to which nothing refers any more. One that has grown, or
// that is nil, is let go.
func (p *Pool) Put(buf []byte) {
	class := bits.Len(uint(cap(buf))) - 1
	if p == nil || class < smallestBits || class > largestBits || cap(buf) != 1<<class {
		return
	}
	p.classes[class-smallestBits].Put(&buf)
}
