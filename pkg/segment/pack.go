package segment

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// The zstd level: its bounds, and what QUEEN_V2_ZSTD_LEVEL means unset.
const (
	MinLevel     = 1
	MaxLevel     = 22
	DefaultLevel = 3
)

const (
	// maxPooledBuffer keeps one huge push from pinning its buffer for ever.
	maxPooledBuffer = 4 << 20
	// plainBytes is up to where a segment is not entropy coded: making the tables
	// and reading them back costs more than the 10 to 15 % that they save. Measured
	// on two messages of 300 bytes: 3.6 us against 10.6 us to pack, 0.5 us against
	// 5.1 us to read.
	plainBytes = 2 << 10
)

// Packer encodes segments. It is safe for concurrent use.
//
// Up to the default level, what compresses badly is stored as it is: random,
// encrypted or compressed payloads. Their redundancy per byte is all that there is
// to remove, and removing and restoring it costs more than anything else that is
// done for a message. Measured on 256 bytes of random base64 per message, 100
// messages a segment: 0.14 us a message to pack for all of the size, against 1.3 us
// for 68 % of it. A level above the default asks for size before speed.
//
// The level buys repeats, so it is spent where it pays: what pays for one segment
// is tried on the next; only when the kind of the payloads changes is a segment
// compressed twice.
type Packer struct {
	encoder *zstd.Encoder // at the level asked for
	fastest *zstd.Encoder // nil when that is the fastest
	plain   *zstd.Encoder // repeats only
	rich    atomic.Bool   // the last segment had repeats
	always  bool          // compress whatever it is
	scratch sync.Pool     // *packBuffers
}

// packBuffers is what one Pack works in.
type packBuffers struct {
	raw  []byte // the frames
	blob []byte // the same, compressed
	survey
}

// NewPacker returns a packer at a zstd level, mapped to the nearest one the
// encoder has.
func NewPacker(level int) (*Packer, error) {
	if level < MinLevel || level > MaxLevel {
		return nil, fmt.Errorf("zstd level %d: %d to %d is allowed", level, MinLevel, MaxLevel)
	}
	p := &Packer{always: level > DefaultLevel, scratch: sync.Pool{New: func() any { return new(packBuffers) }}}
	var err error
	chosen := zstd.EncoderLevelFromZstd(level)
	if p.encoder, err = newEncoder(chosen); err != nil {
		return nil, err
	}
	if p.plain, err = newEncoder(zstd.SpeedFastest, zstd.WithNoEntropyCompression(true)); err != nil {
		return nil, err
	}
	if chosen != zstd.SpeedFastest {
		p.fastest, err = newEncoder(zstd.SpeedFastest)
	}
	return p, err
}

func newEncoder(level zstd.EncoderLevel, more ...zstd.EOption) (*zstd.Encoder, error) {
	e, err := zstd.NewWriter(nil, append(more,
		zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))...)
	if err != nil {
		return nil, fmt.Errorf("make the zstd encoder: %w", err)
	}
	return e, nil
}

// compress appends the compressed form of raw to dst.
func (p *Packer) compress(dst, raw []byte) []byte {
	switch {
	case len(raw) <= plainBytes:
		return p.plain.EncodeAll(raw, dst)
	case p.fastest == nil:
		return p.encoder.EncodeAll(raw, dst)
	}
	if p.rich.Load() {
		out := p.encoder.EncodeAll(raw, dst)
		p.rich.Store(repeats(out, raw))
		return out
	}
	out := p.fastest.EncodeAll(raw, dst)
	if repeats(out, raw) {
		p.rich.Store(true)
		out = p.encoder.EncodeAll(raw, dst)
	}
	return out
}

// repeats tells whether a segment was compressed by more than what random text
// leaves to be saved.
func repeats(out, raw []byte) bool { return len(out) <= len(raw)/2 }

// Pack returns the compressed blob and the hash blob (HashSize bytes per frame,
// in frame order). It allocates those two at their exact size, since both wait
// for the database, and nothing per frame. What a Reader would refuse by default
// is ErrTooLarge here: nobody could read it back.
func (p *Packer) Pack(frames []Frame) (blob, hashes []byte, err error) {
	if len(frames) == 0 {
		return nil, nil, errors.New("a segment needs at least one frame")
	}
	total := 0
	for i := range frames {
		total += frames[i].Size()
	}
	if total > MaxDecodedBytes {
		return nil, nil, fmt.Errorf("%w: %d bytes, %d allowed", ErrTooLarge, total, MaxDecodedBytes)
	}
	b, ok := p.scratch.Get().(*packBuffers)
	if !ok {
		b = new(packBuffers)
	}
	defer p.release(b)
	if cap(b.raw) < total {
		b.raw = make([]byte, 0, total)
	}
	b.raw = b.raw[:0]
	hashes = make([]byte, 0, HashSize*len(frames))
	for i := range frames {
		if b.raw, err = frames[i].appendTo(b.raw); err != nil {
			return nil, nil, fmt.Errorf("frame %d: %w", i, err)
		}
		hashes = AppendHash(hashes, frames[i].TransactionID)
	}
	if !p.always && !b.worth(b.raw, len(b.raw) > plainBytes) {
		return store(b.raw), hashes, nil
	}
	b.blob = p.compress(b.blob[:0], b.raw)
	return bytes.Clone(b.blob), hashes, nil
}

func (p *Packer) release(b *packBuffers) {
	if max(cap(b.raw), cap(b.blob)) <= maxPooledBuffer {
		p.scratch.Put(b)
	}
}
