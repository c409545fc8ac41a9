package segment

import (
	"bytes"
	"fmt"
)

// Decoded is a run of frames of one segment in memory, each found without walking
// over those before it. It is safe for concurrent use.
type Decoded struct {
	raw    []byte
	first  int      // index of the first frame
	starts []uint32 // of each frame's length prefix; a segment has less than 4 GiB
}

// Decode reads the frames of a segment from start on for repeated use: as many as
// limit bytes hold. Frames that are damaged, or beyond the end, are not among them.
func (r *Reader) Decode(blob []byte, start, limit int) (*Decoded, error) {
	d := &Decoded{first: start}
	err := r.decoded(blob, func(raw []byte) error {
		rest := raw
		for range start {
			var err error
			if _, rest, err = cutBody(rest); err != nil {
				return nil //nolint:nilerr // there is none from start on
			}
		}
		d.take(rest, limit)
		return nil
	})
	return d, err
}

// take copies the leading frames of a decoded buffer.
func (d *Decoded) take(raw []byte, limit int) {
	at := 0
	for rest := raw; len(rest) > 0; {
		body, behind, err := cutBody(rest)
		if err != nil || at+lenSize+len(body) > limit {
			break
		}
		d.starts = append(d.starts, uint32(at))
		at += lenSize + len(body)
		rest = behind
	}
	d.raw = bytes.Clone(raw[:at])
}

// Size is about what the frames take in memory.
func (d *Decoded) Size() int { return cap(d.raw) + 4*cap(d.starts) }

// Holds says whether take frames from start on are there.
func (d *Decoded) Holds(start, take int) bool {
	return start >= d.first && take >= 0 && start-d.first+take <= len(d.starts)
}

// Span is how many bytes take frames from start on are, which are there.
func (d *Decoded) Span(start, take int) int {
	end := len(d.raw)
	if next := start - d.first + take; next < len(d.starts) {
		end = int(d.starts[next])
	}
	if take == 0 {
		return 0
	}
	return end - int(d.starts[start-d.first])
}

// Unpack is Reader.Unpack for frames that are there. What fn is given stays valid.
func (d *Decoded) Unpack(start, take int, fn func(index int, f Frame) error) error {
	if !d.Holds(start, take) {
		return fmt.Errorf("%w: %d frames from %d on are not in memory", ErrCorrupt, take, start)
	}
	for i := start; i < start+take; i++ {
		body, _, err := cutBody(d.raw[d.starts[i-d.first]:])
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
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
