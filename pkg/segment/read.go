package segment

import (
	"errors"
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
// The error is fn's own, or wraps ErrCorrupt or ErrTooLarge; a range that the
// segment does not have whole is ErrCorrupt. What lies behind the range is not
// looked at, so damage there costs only the messages there.
func (r *Reader) Unpack(blob []byte, start, take int, fn func(index int, f Frame) error) error {
	if start < 0 || take < 0 {
		return fmt.Errorf("%w: %d frames from %d on are asked for", ErrCorrupt, take, start)
	}
	return r.decoded(blob, func(raw []byte) error { return walk(raw, start, take, fn) })
}

// decoded lends fn the frames of a blob in a pooled buffer.
func (r *Reader) decoded(blob []byte, fn func(raw []byte) error) error {
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
	return fn(raw)
}

// decode checks the declared size before a byte is allocated for it. A blob
// without one comes from another implementation; the decoder's own cap holds it.
func (r *Reader) decode(blob, dst []byte) ([]byte, error) {
	h, err := header(blob)
	if err != nil {
		return nil, err
	}
	if declared := max(h.FrameContentSize, h.WindowSize); declared > r.max {
		return nil, fmt.Errorf("%w: %d bytes declared, %d allowed", ErrTooLarge, declared, r.max)
	}
	raw, err := r.decoder.DecodeAll(blob, dst)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, fmt.Errorf("%w: %d bytes allowed: %w", ErrTooLarge, r.max, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	case h.HasFCS && uint64(len(raw)) != h.FrameContentSize:
		// The decoder goes on with a second zstd frame; a blob has one.
		return nil, fmt.Errorf("%w: %d bytes declared, %d found", ErrCorrupt, h.FrameContentSize, len(raw))
	}
	return raw, nil
}

// Expand decompresses what a client has compressed with zstd, in one frame or in
// several, up to the reader's cap. The error is ErrTooLarge or ErrCorrupt.
func (r *Reader) Expand(data []byte) ([]byte, error) {
	out, err := r.decoder.DecodeAll(data, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, fmt.Errorf("%w: %d bytes allowed: %w", ErrTooLarge, r.max, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return out, nil
}

func header(blob []byte) (zstd.Header, error) {
	var h zstd.Header
	if err := h.Decode(blob); err != nil {
		return h, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if h.Skippable {
		return h, fmt.Errorf("%w: no data in the zstd frame", ErrCorrupt)
	}
	return h, nil
}

// DecodedSize is the number of bytes a blob says it decodes to, read from its
// first bytes alone. known is false for a blob whose writer left it out.
func DecodedSize(blob []byte) (size uint64, known bool, err error) {
	h, err := header(blob)
	return h.FrameContentSize, h.HasFCS, err
}

// walk hops over the frames before start by their lengths alone.
func walk(raw []byte, start, take int, fn func(int, Frame) error) error {
	for i := 0; i < start || i-start < take; i++ {
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
func (r *Reader) Count(blob []byte) (n int, err error) {
	err = r.decoded(blob, func(raw []byte) error {
		for ; len(raw) > 0; n++ {
			body, rest, err := cutBody(raw)
			if err != nil {
				return fmt.Errorf("frame %d: %w", n, err)
			}
			if _, err := parseBody(body); err != nil {
				return fmt.Errorf("frame %d: %w", n, err)
			}
			raw = rest
		}
		return nil
	})
	return n, err
}
