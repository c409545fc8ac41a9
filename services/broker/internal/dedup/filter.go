package dedup

import (
	"slices"
	"sync"

	"github.com/FastFilter/xorfilter"
)

// filter says which fingerprints are not in a set: it costs a little over a byte
// for each and lets one stranger in 256 pass. A nil filter lets all pass.
type filter = xorfilter.BinaryFuse[uint8]

func mayHold(f *filter, fp uint32) bool { return f == nil || f.Contains(uint64(fp)) }

func filterBytes(f *filter) int64 {
	if f == nil {
		return 0
	}
	return filterOverhead + int64(cap(f.Fingerprints))
}

const filterOverhead = 48 // the struct itself

// builder keeps what building a filter needs beside the filter: some 30 bytes a
// key.
type builder struct {
	fuse xorfilter.BinaryFuseBuilder
	keys []uint64
	late []uint32
	seen []uint64
	set  wanted
}

type builders struct{ pool sync.Pool }

// build makes the filter of the fingerprints that each yields.
func (p *builders) build(each func(yield func([]uint32)), n int) *filter {
	b, ok := p.pool.Get().(*builder)
	if !ok {
		b = &builder{}
	}
	defer p.pool.Put(b)
	b.collect(each, n)
	f, err := xorfilter.BuildBinaryFuse[uint8](&b.fuse, b.keys)
	if err != nil { // no keys, or a thousand failures in a row
		return nil
	}
	f.Fingerprints = slices.Clone(f.Fingerprints) // they are the builder's own
	return &f
}

// collect gathers the keys, each once: copies cost the library a sort at best, and
// a set in which one id occurs a hundred times, as a lane may hold that had no
// window until now, keeps it trying for seconds. A bitmap tells nearly all keys
// that are new; the few others are sorted.
func (b *builder) collect(each func(yield func([]uint32)), n int) {
	const bitsPerKey = 64
	size := uint32(64)
	for size < uint32(n)*bitsPerKey && size < 1<<26 {
		size *= 2
	}
	b.seen = append(b.seen[:0], make([]uint64, size/64)...)
	b.keys, b.late = b.keys[:0], b.late[:0]
	each(func(fps []uint32) {
		for _, fp := range fps {
			at := fp & (size - 1)
			if b.seen[at/64]&(1<<(at%64)) != 0 {
				b.late = append(b.late, fp)
				continue
			}
			b.seen[at/64] |= 1 << (at % 64)
			b.keys = append(b.keys, uint64(fp))
		}
	})
	b.set.reset(b.late)
	b.keys = slices.DeleteFunc(b.keys, func(key uint64) bool { return b.set.has(uint32(key)) })
	b.set.fps = slices.Compact(b.set.fps)
	for _, fp := range b.set.fps {
		b.keys = append(b.keys, uint64(fp))
	}
}
