package segment

import (
	"bytes"
	"fmt"
)

// Decoded is a whole segment in memory, whose frames are found without walking
// over those before them. It is safe for concurrent use.
type Decoded struct {
	raw    []byte
	starts []uint32 // of each frame's length prefix; a segment has less than 4 GiB
	err    error    // why the frames end here, if they do not end whole
}

// Decode reads a segment for repeated use. Damage behind some of its frames costs
// only those behind it, as in Unpack.
func (r *Reader) Decode(blob []byte) (*Decoded, error) {
	d := &Decoded{}
	err := r.decoded(blob, func(raw []byte) error {
		d.raw = bytes.Clone(raw)
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.index()
	return d, nil
}

// index notes where the frames start.
func (d *Decoded) index() {
	for rest := d.raw; len(rest) > 0; {
		at := len(d.raw) - len(rest)
		if _, rest, d.err = cutBody(rest); d.err != nil {
			return
		}
		d.starts = append(d.starts, uint32(at))
	}
}

// Size is about what the segment takes in memory.
func (d *Decoded) Size() int { return cap(d.raw) + 4*cap(d.starts) }

// Unpack is Reader.Unpack. What fn is given stays valid.
func (d *Decoded) Unpack(start, take int, fn func(index int, f Frame) error) error {
	if start < 0 || take < 0 {
		return fmt.Errorf("%w: %d frames from %d on are asked for", ErrCorrupt, take, start)
	}
	for i := start; i-start < take; i++ {
		if i >= len(d.starts) {
			return fmt.Errorf("frame %d: %w", i, d.end())
		}
		body, _, err := cutBody(d.raw[d.starts[i]:])
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

// end says why there is no frame behind the last one.
func (d *Decoded) end() error {
	if d.err != nil {
		return d.err
	}
	return fmt.Errorf("%w: the segment has %d frames", ErrCorrupt, len(d.starts))
}
