package segment

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	sampleBytes = 1 << 10 // of each place that is looked at
	matchBytes  = 8       // the shortest repeat that counts
	matchCost   = 3       // bytes that a repeat takes compressed
	seenBits    = 9
)

// Compressed, a segment has to leave less than this of itself. Up to plainBytes
// only repeats are compressed, at little cost.
const (
	worthPlain = 0.75
	worthCoded = 0.60
)

// survey is what a sample of a segment consists of.
type survey struct {
	seen     [1 << seenBits]uint16 // positions by the hash of what stands there
	counts   [256]uint16           // of the bytes that repeat nothing
	literals int
	matches  int
}

// worth estimates whether compressing a segment pays. Its beginning and its middle
// are judged each for itself: a segment may join requests of different kinds, and
// noise costs the compressor little where it stands beside what repeats. The
// estimate costs 1 to 4 us.
func (s *survey) worth(raw []byte, coded bool) bool {
	if len(raw) <= 2*sampleBytes {
		return s.shrinks(raw, coded)
	}
	return s.shrinks(raw[:sampleBytes], coded) || s.shrinks(raw[len(raw)/2:][:sampleBytes], coded)
}

// shrinks looks at how much of a sample repeats what came before in it, and, where
// the rest is to be entropy coded, at how evenly its bytes are spread.
func (s *survey) shrinks(sample []byte, coded bool) bool {
	if coded {
		clear(s.counts[:])
	}
	s.read(sample, coded)
	left, limit := float64(s.literals), worthPlain
	if coded {
		left *= s.bitsPerByte() / 8
		limit = worthCoded
	}
	return left+float64(s.matches*matchCost) <= limit*float64(len(sample))
}

// read looks for repeats. Every fourth position is remembered and every third is
// looked up, so that repeats of any distance meet, long ones at least; those are
// then as good as whole.
func (s *survey) read(sample []byte, count bool) {
	clear(s.seen[:])
	s.literals, s.matches = 0, 0
	noted, kept := 0, 0 // what lies behind kept repeats nothing so far
	for at := 0; at+matchBytes <= len(sample); {
		for ; noted < at; noted += 4 {
			s.seen[slot(sample[noted:])] = uint16(noted)
		}
		from := int(s.seen[slot(sample[at:])])
		if from >= at || binary.LittleEndian.Uint64(sample[from:]) != binary.LittleEndian.Uint64(sample[at:]) {
			at += 3
			continue
		}
		end := at + matchBytes + common(sample[from+matchBytes:], sample[at+matchBytes:])
		for from > 0 && at > kept && sample[from-1] == sample[at-1] {
			from, at = from-1, at-1
		}
		s.literal(sample[kept:at], count)
		s.matches++
		at, kept = end, end
	}
	s.literal(sample[kept:], count)
}

// slot is where a position is remembered.
func slot(text []byte) uint64 {
	const prime = 0x9e3779b185ebca87
	return binary.LittleEndian.Uint64(text) * prime >> (64 - seenBits)
}

func (s *survey) literal(text []byte, count bool) {
	s.literals += len(text)
	if !count {
		return
	}
	for _, c := range text {
		s.counts[c]++
	}
}

// common is the length of the common beginning of a and b, the shorter one.
func common(a, b []byte) int {
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		if diff := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); diff != 0 {
			return n + bits.TrailingZeros64(diff)/8
		}
	}
	for n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// bitsPerByte is what the literals take: their collision entropy, which is close
// to Shannon's and needs one logarithm.
func (s *survey) bitsPerByte() float64 {
	squares := 0
	for _, n := range s.counts {
		squares += int(n) * int(n)
	}
	if squares == 0 {
		return 0
	}
	return -math.Log2(float64(squares) / float64(s.literals) / float64(s.literals))
}

const (
	zstdMagic  = 0xFD2FB528
	oneSegment = 1 << 5 // the window is the content, and its size is named
	lastBlock  = 1
	blockBytes = 128 << 10 // the most that a block may hold
	frameHead  = 4 + 1 + 4
)

// store makes the zstd frame that holds raw as it is.
func store(raw []byte) []byte {
	blocks := max(1, (len(raw)+blockBytes-1)/blockBytes)
	dst := make([]byte, 0, frameHead+3*blocks+len(raw))
	dst = binary.LittleEndian.AppendUint32(dst, zstdMagic)
	switch n := len(raw); {
	case n < 1<<8:
		dst = append(dst, oneSegment, byte(n))
	case n < 1<<16+1<<8:
		dst = binary.LittleEndian.AppendUint16(append(dst, oneSegment|1<<6), uint16(n-1<<8))
	default:
		dst = binary.LittleEndian.AppendUint32(append(dst, oneSegment|2<<6), uint32(n))
	}
	for range blocks {
		part := raw[:min(len(raw), blockBytes)]
		raw = raw[len(part):]
		head := uint32(len(part)) << 3 // type 0: as it is
		if len(raw) == 0 {
			head |= lastBlock
		}
		dst = append(dst, byte(head), byte(head>>8), byte(head>>16))
		dst = append(dst, part...)
	}
	return dst
}
