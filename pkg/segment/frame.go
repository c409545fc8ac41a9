package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/google/uuid"
)

const (
	flagTrace     = 1
	flagProducer  = 2
	flagEncrypted = 4
	knownFlags    = flagTrace | flagProducer | flagEncrypted

	lenSize = 4
	idSize  = 16
	// minBody is flags, message id and the length of an empty transaction id.
	minBody = 1 + idSize + 2

	// MaxIDBytes is the longest transaction id or producer sub a frame can hold.
	MaxIDBytes = 1<<16 - 1
)

var (
	// ErrCorrupt says that a blob is not what Pack makes: damaged, or hostile.
	ErrCorrupt = errors.New("corrupt segment")
	// ErrTooLarge says that the frames of a segment together pass the cap.
	ErrTooLarge = errors.New("segment larger than allowed")
	// ErrFieldTooLong says that an id does not fit its length field.
	ErrFieldTooLong = errors.New("field is longer than 65535 bytes")
)

// Frame is one message of a segment.
type Frame struct {
	MessageID     uuid.UUID
	TraceID       uuid.UUID // meaningful with HasTrace
	HasTrace      bool
	Encrypted     bool
	TransactionID string
	ProducerSub   string // "" when absent
	Payload       []byte // JSON as the client sent it, or an encryption envelope
}

// Size is the encoded length, length prefix included.
func (f *Frame) Size() int {
	n := lenSize + minBody + len(f.TransactionID) + len(f.Payload)
	if f.HasTrace {
		n += idSize
	}
	if f.ProducerSub != "" {
		n += 2 + len(f.ProducerSub)
	}
	return n
}

// appendTo encodes the frame after dst. Its length fits the u32: Pack has bounded
// all frames together.
func (f *Frame) appendTo(dst []byte) ([]byte, error) {
	if len(f.TransactionID) > MaxIDBytes {
		return dst, fmt.Errorf("transaction id: %w", ErrFieldTooLong)
	}
	if len(f.ProducerSub) > MaxIDBytes {
		return dst, fmt.Errorf("producer sub: %w", ErrFieldTooLong)
	}
	var flags byte
	if f.HasTrace {
		flags |= flagTrace
	}
	if f.ProducerSub != "" {
		flags |= flagProducer
	}
	if f.Encrypted {
		flags |= flagEncrypted
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(f.Size()-lenSize))
	dst = append(dst, flags)
	dst = append(dst, f.MessageID[:]...)
	if f.HasTrace {
		dst = append(dst, f.TraceID[:]...)
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(f.TransactionID)))
	dst = append(dst, f.TransactionID...)
	if f.ProducerSub != "" {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(f.ProducerSub)))
		dst = append(dst, f.ProducerSub...)
	}
	return append(dst, f.Payload...), nil
}

// cutBody takes the first frame's body off a decoded buffer.
func cutBody(buf []byte) (body, rest []byte, err error) {
	if len(buf) < lenSize {
		return nil, nil, fmt.Errorf("%w: %d trailing bytes", ErrCorrupt, len(buf))
	}
	n := uint64(binary.LittleEndian.Uint32(buf))
	if n < minBody || n > uint64(len(buf)-lenSize) {
		return nil, nil, fmt.Errorf("%w: frame of %d bytes where %d follow", ErrCorrupt, n, len(buf)-lenSize)
	}
	return buf[lenSize : lenSize+n], buf[lenSize+n:], nil
}

// parseBody reads a frame. Its payload and its strings alias body: a copy of
// each id would be the only allocation per message on the pop path.
func parseBody(body []byte) (Frame, error) {
	var f Frame
	flags := body[0]
	if flags&^knownFlags != 0 {
		return f, fmt.Errorf("%w: unknown flags %#x", ErrCorrupt, flags)
	}
	f.MessageID = uuid.UUID(body[1 : 1+idSize])
	rest := body[1+idSize:]
	if flags&flagTrace != 0 {
		if len(rest) < idSize {
			return f, fmt.Errorf("%w: trace id cut short", ErrCorrupt)
		}
		f.HasTrace, f.TraceID, rest = true, uuid.UUID(rest[:idSize]), rest[idSize:]
	}
	txn, rest, err := cutField(rest, "transaction id")
	if err != nil {
		return f, err
	}
	f.TransactionID = alias(txn)
	if flags&flagProducer != 0 {
		var sub []byte
		if sub, rest, err = cutField(rest, "producer sub"); err != nil {
			return f, err
		}
		f.ProducerSub = alias(sub)
	}
	f.Encrypted = flags&flagEncrypted != 0
	f.Payload = rest
	return f, nil
}

// alias views bytes as a string that lives only as long as they do.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// clone detaches the frame from the buffer it was read from.
func (f Frame) clone() Frame {
	f.TransactionID = strings.Clone(f.TransactionID)
	f.ProducerSub = strings.Clone(f.ProducerSub)
	f.Payload = append([]byte(nil), f.Payload...)
	return f
}

// cutField takes a u16-prefixed field off a body.
func cutField(b []byte, name string) (field, rest []byte, err error) {
	if len(b) < 2 {
		return nil, nil, fmt.Errorf("%w: %s cut short", ErrCorrupt, name)
	}
	n := int(binary.LittleEndian.Uint16(b))
	if len(b)-2 < n {
		return nil, nil, fmt.Errorf("%w: %s cut short", ErrCorrupt, name)
	}
	return b[2 : 2+n], b[2+n:], nil
}
