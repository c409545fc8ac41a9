package segment

import (
	"errors"
	"fmt"
	"sync"

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
)

// Packer encodes segments. It is safe for concurrent use.
type Packer struct {
	encoder *zstd.Encoder
	buffers sync.Pool // *[]byte: frames before compression
}

// NewPacker returns a packer at a zstd level, mapped to the nearest one the
// encoder has.
func NewPacker(level int) (*Packer, error) {
	if level < MinLevel || level > MaxLevel {
		return nil, fmt.Errorf("zstd level %d: %d to %d is allowed", level, MinLevel, MaxLevel)
	}
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, fmt.Errorf("make the zstd encoder: %w", err)
	}
	return &Packer{encoder: encoder, buffers: sync.Pool{New: func() any { return new([]byte) }}}, nil
}

// Pack returns the compressed blob and the hash blob (HashSize bytes per frame,
// in frame order). It allocates those two and nothing per frame.
func (p *Packer) Pack(frames []Frame) (blob, hashes []byte, err error) {
	if len(frames) == 0 {
		return nil, nil, errors.New("a segment needs at least one frame")
	}
	total := 0
	for i := range frames {
		total += frames[i].size()
	}
	buf, ok := p.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	defer p.release(buf)
	if cap(*buf) < total {
		*buf = make([]byte, 0, total)
	}
	raw := (*buf)[:0]
	hashes = make([]byte, 0, HashSize*len(frames))
	for i := range frames {
		if raw, err = frames[i].appendTo(raw); err != nil {
			return nil, nil, fmt.Errorf("frame %d: %w", i, err)
		}
		hashes = AppendHash(hashes, frames[i].TransactionID)
	}
	*buf = raw
	return p.encoder.EncodeAll(raw, make([]byte, 0, total/2+64)), hashes, nil
}

func (p *Packer) release(buf *[]byte) {
	if cap(*buf) <= maxPooledBuffer {
		p.buffers.Put(buf)
	}
}
