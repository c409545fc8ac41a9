package timers

import (
	"bytes"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/mint"
)

// Kind tells operations apart.
type Kind uint8

// The operations.
const (
	Unknown Kind = iota // the procedure refuses it
	Schedule
	Reschedule
	Cancel
)

var kindNames = [...]string{Unknown: "unknown", Schedule: "schedule", Reschedule: "reschedule", Cancel: "cancel"}

// String is the operation as the wire names it.
func (k Kind) String() string { return kindNames[k] }

func (k Kind) schedules() bool { return k == Schedule || k == Reschedule }

// The members that the edge knows. Each may be given once: of several, the database
// would take the last, and the checks would have looked at another.
const (
	fieldOp = iota
	fieldQueue
	fieldKey
	fieldPartition
	fieldDelay
	fieldTxn
	fieldPayload
	fieldZstd
	fieldEncrypted
	fields
)

func fieldOf(key []byte) int {
	switch string(key) {
	case "op":
		return fieldOp
	case "queue":
		return fieldQueue
	case "timerKey":
		return fieldKey
	case "partition":
		return fieldPartition
	case "delayMs":
		return fieldDelay
	case "txn":
		return fieldTxn
	case "payload":
		return fieldPayload
	case "payloadZstd":
		return fieldZstd
	case "encrypted":
		return fieldEncrypted
	}
	return fields
}

// scan is one walk through the operations of a call. Its memory serves the next one.
type scan struct {
	edge    *Edge
	dec     *jsontext.Decoder
	buf     bytes.Buffer // what dec reads
	ops     []byte
	array   string // what the client calls the array
	horizon time.Duration

	kinds        []Kind
	starts       []int // where the members of each schedule begin
	soonest      time.Duration
	payloadBytes int64

	ids     []uuid.UUID
	scratch []byte // a text without its escapes
	// values are the members of the operation at hand, nil for those it lacks.
	values [fields][]byte
}

func newScan() *scan { return &scan{dec: new(jsontext.Decoder)} }

func (s *scan) begin(e *Edge, ops []byte, rider bool) {
	s.edge, s.ops, s.array = e, ops, "operations"
	if rider {
		s.array = "timers"
	}
	s.kinds, s.starts, s.soonest, s.payloadBytes = s.kinds[:0], s.starts[:0], 0, 0
	s.buf = *bytes.NewBuffer(ops)
	// Duplicate names matter for the members that are looked at, and are found
	// there; unpaired surrogate escapes are for jsonb to refuse.
	s.dec.Reset(&s.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// scratchKept is how much memory for escaped texts a scan keeps.
const scratchKept = 64 << 10

// forget lets go of what belongs to a request.
func (s *scan) forget() {
	s.ops, s.buf, s.values = nil, bytes.Buffer{}, [fields][]byte{}
	s.dec.Reset(&s.buf)
	if cap(s.scratch) > scratchKept {
		s.scratch = nil
	}
}

// run looks at every operation. The refusal is that of the first bad one.
func (s *scan) run() error {
	if s.dec.PeekKind() != '[' {
		return s.unreadable("an array of operations is needed", nil)
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.unreadable("", err)
	}
	for s.dec.PeekKind() != ']' && s.dec.PeekKind() != 0 {
		if len(s.kinds) == s.edge.maxOps {
			return badRequest(ReasonTooManyOps, "%s: more than %d in one call", s.array, s.edge.maxOps)
		}
		if err := s.operation(); err != nil {
			return err
		}
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.unreadable("", err)
	}
	if rest := bytes.TrimLeft(s.ops[s.dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return s.unreadable("nothing is allowed behind the array", nil)
	}
	return nil
}

func (s *scan) unreadable(text string, err error) error {
	if err != nil {
		text = strings.TrimPrefix(err.Error(), "jsontext: ")
	}
	return badRequest(ReasonBadBody, "%s: %s", s.array, text)
}

// refuse is a refusal of the operation at hand.
func (s *scan) refuse(reason, format string, args ...any) *wire.Refusal {
	at := s.array + "[" + strconv.Itoa(len(s.kinds)) + "]"
	r := badRequest(reason, format, args...)
	r.Detail = at + ": " + r.Detail
	return r
}

// operation reads one operation and checks it if it schedules.
func (s *scan) operation() error {
	if s.dec.PeekKind() != '{' {
		if err := s.dec.SkipValue(); err != nil {
			return s.unreadable("", err)
		}
		return s.refuse(ReasonBadOp, "must be an object")
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.unreadable("", err)
	}
	start := int(s.dec.InputOffset())
	if err := s.members(); err != nil {
		return err
	}
	kind := s.kind()
	if kind.schedules() {
		if err := s.check(); err != nil {
			return err
		}
		s.starts = append(s.starts, start)
	}
	s.kinds = append(s.kinds, kind)
	return nil
}

// members collects the members of an object up to its end.
func (s *scan) members() error {
	s.values = [fields][]byte{}
	for s.dec.PeekKind() == '"' {
		quoted, err := s.dec.ReadValue()
		if err != nil {
			return s.unreadable("", err)
		}
		key, _ := s.text(quoted) // a mangled surrogate is part of no name that matters
		if len(key) > 0 && key[0] == '_' {
			return s.refuse(ReasonServerOwned, "names that begin with an underscore are the server's")
		}
		field := fieldOf(key)
		if field == fields {
			if err := s.dec.SkipValue(); err != nil {
				return s.unreadable("", err)
			}
			continue
		}
		value, err := s.dec.ReadValue()
		if err != nil {
			return s.unreadable("", err)
		}
		if s.values[field] != nil {
			return s.refuse(ReasonBadOp, "%q is given twice", key)
		}
		// The decoder's bytes are valid until its next step only.
		end := int(s.dec.InputOffset())
		s.values[field] = s.ops[end-len(value) : end : end]
	}
	if _, err := s.dec.ReadToken(); err != nil {
		return s.unreadable("", err)
	}
	return nil
}

// text is a JSON string without quotes and escapes, which rarely needs a copy. ok is
// false for what is no string, or holds an unpaired surrogate.
func (s *scan) text(value []byte) (text []byte, ok bool) {
	if len(value) == 0 || value[0] != '"' {
		return nil, false
	}
	if inner := value[1 : len(value)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner, true
	}
	var err error
	s.scratch, err = jsontext.AppendUnquote(s.scratch[:0], value)
	return s.scratch, err == nil
}

func (s *scan) kind() Kind {
	op, _ := s.text(s.values[fieldOp])
	for k := Schedule; k <= Cancel; k++ {
		if string(op) == kindNames[k] {
			return k
		}
	}
	return Unknown
}

// check looks at what only a schedule has.
func (s *scan) check() error {
	if queue, _ := s.text(s.values[fieldQueue]); len(queue) == 0 {
		return s.refuse(ReasonQueueRequired, "queue must be a text that is not empty")
	}
	if delay := s.values[fieldDelay]; !isNumber(delay) {
		return s.refuse(ReasonDelayRequired, "delayMs must be a number of milliseconds from now")
	}
	if payload := s.values[fieldPayload]; len(payload) == 0 || payload[0] != '"' {
		return s.refuse(ReasonPayloadRequired, "payload must be a base64 text")
	}
	if err := s.checkNames(); err != nil {
		return err
	}
	if err := s.checkDelay(); err != nil {
		return err
	}
	return s.checkPayload()
}

// isNumber tells a JSON number from other values, all of them well formed, and none.
func isNumber(value []byte) bool {
	return len(value) > 0 && (value[0] == '-' || '0' <= value[0] && value[0] <= '9')
}

// checkNames holds the names against the limits of the log, into which a timer must
// fit one day. What is missing is for the procedure to tell.
func (s *scan) checkNames() error {
	for _, n := range [...]struct {
		field      int
		name, kind string
	}{{fieldQueue, "queue", wire.KindQueue}, {fieldPartition, "partition", wire.KindPartition}, {fieldTxn, "txn", wire.KindTransactionID}} {
		text, ok := s.text(s.values[n.field])
		switch {
		case !ok && text != nil:
			return s.refuse(ReasonBadOp, "%s: holds an unpaired surrogate", n.name)
		case isPlain(text):
			continue
		}
		if err := wire.CheckName(n.kind, string(text)); err != nil {
			return s.refuse(ReasonBadOp, "%s: %s", n.name, strings.TrimPrefix(err.Error(), n.kind+": "))
		}
	}
	return nil
}

// isPlain is the quick way out for nearly every name: it is within each limit.
func isPlain(name []byte) bool {
	if len(name) > wire.MaxQueueNameChars {
		return false
	}
	for _, c := range name {
		if c < ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// checkDelay holds the delay against the horizon. Delays below zero mean now.
func (s *scan) checkDelay() error {
	// An error would say that the number is out of range, and then it is infinite.
	millis, _ := strconv.ParseFloat(string(s.values[fieldDelay]), 64)
	if allowed := s.horizon.Milliseconds(); millis > float64(allowed) {
		r := s.refuse(ReasonHorizon, "delayMs is beyond the horizon of %d milliseconds", allowed)
		r.Status, r.Code = http.StatusForbidden, CodeHorizonExceeded
		return r
	}
	delay := time.Duration(max(millis, 0) * float64(time.Millisecond))
	if len(s.starts) == 0 || delay < s.soonest {
		s.soonest = delay
	}
	return nil
}

func (s *scan) checkPayload() error {
	text, ok := s.text(s.values[fieldPayload])
	size := 0
	if ok {
		size, ok = decodedSize(text)
	}
	switch {
	case !ok:
		return s.refuse(ReasonPayloadNotBase64, "payload must be base64 with its padding; blanks and line breaks are allowed in it")
	case size > s.edge.maxPayload:
		r := s.refuse(ReasonPayloadTooLarge, "payload has %d bytes, %d are allowed", size, s.edge.maxPayload)
		r.Status, r.Code = http.StatusRequestEntityTooLarge, wire.CodePayloadTooLarge
		return r
	}
	s.payloadBytes += int64(size)
	return nil
}

// The member that the edge adds, which is never the last one of its object.
const (
	idHead = `"_messageId":"`
	idTail = `",`
	idSize = len(idHead) + 36 + len(idTail)
)

// stamp writes the operations anew, with a fresh message id in each schedule.
func (s *scan) stamp(source *mint.Source) ([]byte, error) {
	s.ids = slices.Grow(s.ids[:0], len(s.starts))[:len(s.starts)]
	if err := source.Fill(s.ids); err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(s.ops)+len(s.starts)*idSize)
	done := 0
	for i, start := range s.starts {
		out = append(out, s.ops[done:start]...)
		out = append(out, idHead...)
		out = appendUUID(out, &s.ids[i])
		out = append(out, idTail...)
		done = start
	}
	return append(out, s.ops[done:]...), nil
}

func appendUUID(dst []byte, id *uuid.UUID) []byte {
	dst = append(hex.AppendEncode(dst, id[:4]), '-')
	dst = append(hex.AppendEncode(dst, id[4:6]), '-')
	dst = append(hex.AppendEncode(dst, id[6:8]), '-')
	dst = append(hex.AppendEncode(dst, id[8:10]), '-')
	return hex.AppendEncode(dst, id[10:])
}
