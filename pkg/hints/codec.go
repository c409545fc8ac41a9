package hints

import (
	"encoding/binary"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// A payload is the version byte and then records: a code, the length of the body
// as a varint, the body. Texts in a body carry their length. A reader skips codes
// that it does not know and bytes at the end of a body, which later versions may
// use. Most hints of one payload concern few queues, so tenant and queue are a
// record of their own that holds for those after it.
const (
	version = 1

	codeScope = 0 // tenant, queue; the other codes are the kinds

	// maxPayload keeps a whole datagram, with label, encryption and headers, under
	// maxDatagram.
	maxPayload  = 1200
	maxDatagram = 1300

	maxCount = 1 << 20
	idBytes  = 16

	flagFull    = 1
	flagDeleted = 1
	flagEmptied = 1
	flagLeased  = 2
)

var (
	errVersion   = errors.New("another version")
	errMalformed = errors.New("malformed")
)

// recordBytes is about what a hint takes beside its texts.
const recordBytes = 40

// size is about what a hint takes on its own.
func (h *Hint) size() int { return recordBytes + len(h.Queue) + len(h.Partition) + len(h.Group) }

// encoder packs hints into payloads.
type encoder struct {
	buf     []byte
	body    []byte
	scoped  bool // tenant and queue are those of the last scope
	tenant  uuid.UUID
	queue   string
	records int
}

func (e *encoder) reset() {
	e.buf, e.scoped, e.records = append(e.buf[:0], version), false, 0
}

// add appends a hint. It reports false when the hint does not fit any more.
func (e *encoder) add(h *Hint) bool {
	before := len(e.buf)
	if h.scoped() && (!e.scoped || e.tenant != h.Tenant || e.queue != h.Queue) {
		e.body = append(append(e.body[:0], h.Tenant[:]...), h.Queue...)
		e.record(codeScope)
	}
	e.body = h.appendBody(e.body[:0])
	e.record(byte(h.Kind))
	if len(e.buf) > maxPayload {
		e.buf = e.buf[:before]
		return false
	}
	if h.scoped() {
		e.scoped, e.tenant, e.queue = true, h.Tenant, h.Queue
	}
	e.records++
	return true
}

func (e *encoder) record(code byte) {
	e.buf = append(e.buf, code)
	e.buf = binary.AppendUvarint(e.buf, uint64(len(e.body)))
	e.buf = append(e.buf, e.body...)
}

// shorten makes a hint that does not fit any payload mean more with less. It
// reports false when nothing is left to leave out.
func (h *Hint) shorten() bool {
	switch {
	case h.Kind == Taken:
		return false // it means one lane
	case h.Kind == Released && h.Queue+h.Partition != "":
		h.Queue, h.Partition = "", "" // the id remains
	case h.Partition != "":
		h.Partition = "" // the whole queue
	case h.Kind == CursorMoved:
		*h = Hint{Kind: Pushed, Tenant: h.Tenant, Queue: h.Queue, Count: 1} // every group
	default:
		return false
	}
	return true
}

func (h *Hint) scoped() bool { return h.Kind != TimerDue && h.Kind != FlagsChanged }

func (h *Hint) appendBody(b []byte) []byte {
	switch h.Kind {
	case Pushed:
		b = binary.AppendUvarint(b, uint64(max(h.Count, 0)))
		b = appendText(b, h.Partition)
	case CursorMoved:
		b = appendText(appendText(b, h.Partition), h.Group)
	case Released:
		b = append(append(b, flag(h.Full, flagFull)), h.PartitionID[:]...)
		b = appendText(appendText(b, h.Partition), h.Group)
	case Taken:
		b = append(b, flag(h.Emptied, flagEmptied)|flag(h.Leased, flagLeased))
		b = binary.AppendUvarint(b, uint64(max(h.Count, 0)))
		b = appendText(appendText(b, h.Partition), h.Group)
	case TimerDue:
		// Rounded up: nobody is to look before it is due.
		b = binary.AppendVarint(b, h.At.Add(time.Millisecond-1).UnixMilli())
	case QueueChanged:
		b = append(b, flag(h.Deleted, flagDeleted))
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// decode reads a payload. It answers all of its hints or an error.
func decode(payload []byte, into []Hint) ([]Hint, error) {
	if len(payload) == 0 || len(payload) > maxDatagram {
		return nil, errMalformed
	}
	if payload[0] != version {
		return nil, errVersion
	}
	var scope Hint
	scoped := false
	for r := (reader{rest: payload[1:]}); len(r.rest) > 0; {
		code := r.byte()
		body := reader{rest: r.bytes(r.uvarint(maxDatagram))}
		if r.bad {
			return nil, errMalformed
		}
		switch {
		case code == codeScope:
			scope = Hint{Tenant: body.id(), Queue: string(body.rest)}
			scoped = true
			body.bad = body.bad || !utf8.ValidString(scope.Queue)
		case Kind(code) < kinds:
			h := scope
			h.Kind = Kind(code)
			h.readBody(&body)
			body.bad = body.bad || h.scoped() && !scoped
			into = append(into, h)
		}
		if body.bad {
			return nil, errMalformed
		}
	}
	return into, nil
}

func (h *Hint) readBody(r *reader) {
	switch h.Kind {
	case Pushed:
		h.Count = max(int(r.uvarint(maxCount)), 1)
		h.Partition = r.text()
	case CursorMoved:
		h.Partition, h.Group = r.text(), r.text()
	case Released:
		h.Full = r.byte()&flagFull != 0
		h.PartitionID = r.id()
		h.Partition, h.Group = r.text(), r.text()
	case Taken:
		flags := r.byte()
		h.Emptied, h.Leased = flags&flagEmptied != 0, flags&flagLeased != 0
		h.Count = int(r.uvarint(maxCount))
		h.Partition, h.Group = r.text(), r.text()
	case TimerDue:
		*h = Hint{Kind: TimerDue, At: time.UnixMilli(r.varint())}
	case QueueChanged:
		h.Deleted = r.byte()&flagDeleted != 0
	case FlagsChanged:
		*h = Hint{Kind: FlagsChanged}
	}
	// Only a lease is known without its queue.
	r.bad = r.bad || h.scoped() && h.Kind != Released && h.Queue == ""
}

// reader takes a body apart. After the first thing that is not there it is bad
// and answers zero values.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) bytes(n uint64) []byte {
	if r.bad || n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > limit {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) id() (id uuid.UUID) {
	copy(id[:], r.bytes(idBytes))
	return id
}

func (r *reader) text() string {
	s := string(r.bytes(r.uvarint(maxDatagram)))
	r.bad = r.bad || !utf8.ValidString(s)
	return s
}
