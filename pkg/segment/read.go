package segment

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// MaxDecodedBytes is the default cap of a decoded segment: above what a request
// body of the default limit can become.
const MaxDecodedBytes = 256 << 20

// Reader decodes segments. It is safe for concurrent use.
type Reader struct {
	decoder *zstd.Decoder
	max     uint64
	buffers sync.Pool // *[]byte: decoded frames
}

// NewReader returns a reader that refuses blobs decoding to more than maxDecoded
// bytes; 0 means MaxDecodedBytes.
func NewReader(maxDecoded int) (*Reader, error) {
	if maxDecoded <= 0 {
		maxDecoded = MaxDecodedBytes
	}
	decoder, err := zstd.NewReader(nil,
		zstd.WithDecoderMaxMemory(uint64(maxDecoded)), zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)))
	if err != nil {
		return nil, fmt.Errorf("make the zstd decoder: %w", err)
	}
	return &Reader{
		decoder: decoder, max: uint64(maxDecoded), buffers: sync.Pool{New: func() any { return new([]byte) }},
	}, nil
}

// Unpack calls fn for take frames from start on, in order, with each frame's
// index in the segment. A frame's payload and strings are valid only inside fn.
// The error is fn's own, or wraps ErrCorrupt or ErrTooLarge; frames missing at the end of the
// asked range are ErrCorrupt.
func (r *Reader) Unpack(blob []byte, start, take int, fn func(index int, f Frame) error) error {
	buf, ok := r.buffers.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	defer func() {
		if cap(*buf) <= maxPooledBuffer {
			r.buffers.Put(buf)
		}
	}()
	raw, err := r.decode(blob, (*buf)[:0])
	if err != nil {
		return err
	}
	*buf = raw
	return walk(raw, start, take, fn)
}

// decode checks the declared size before a byte is allocated for it.
func (r *Reader) decode(blob, dst []byte) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(blob); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if h.Skippable || (h.HasFCS && h.FrameContentSize > r.max) || h.WindowSize > r.max {
		return nil, fmt.Errorf("%w: %d bytes declared, %d allowed", ErrTooLarge, max(h.FrameContentSize, h.WindowSize), r.max)
	}
	raw, err := r.decoder.DecodeAll(blob, dst)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return raw, nil
}

func walk(raw []byte, start, take int, fn func(int, Frame) error) error {
	end := start + take
	for i := 0; i < end; i++ {
		body, rest, err := cutBody(raw)
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		raw = rest
		if i < start {
			continue
		}
		f, err := parseBody(body)
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		if err := fn(i, f); err != nil {
			return err
		}
	}
	return nil
}

// Frame returns a copy of one frame.
func (r *Reader) Frame(blob []byte, index int) (Frame, error) {
	var found Frame
	err := r.Unpack(blob, index, 1, func(_ int, f Frame) error {
		found = f.clone()
		return nil
	})
	return found, err
}

// Count walks a whole segment and returns its number of frames. Anything after
// the last whole frame is ErrCorrupt.
func (r *Reader) Count(blob []byte) (int, error) {
	raw, err := r.decode(blob, nil)
	if err != nil {
		return 0, err
	}
	n := 0
	for ; len(raw) > 0; n++ {
		body, rest, err := cutBody(raw)
		if err != nil {
			return 0, fmt.Errorf("frame %d: %w", n, err)
		}
		if _, err := parseBody(body); err != nil {
			return 0, fmt.Errorf("frame %d: %w", n, err)
		}
		raw = rest
	}
	return n, nil
}
