package wire

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// TxKind tells the operations of a transaction apart.
type TxKind int

// The operations a transaction may hold.
const (
	TxPush TxKind = iota
	TxAck
)

// TxOp is one flattened operation: each item of a push operation counts.
type TxOp struct {
	Kind     TxKind
	Push     PushItem  // with TxPush
	TraceID  uuid.UUID // with TxPush and HasTrace
	HasTrace bool
	Ack      AckItem // with TxAck
}

// TxRequest is the body of POST /api/v1/transaction.
type TxRequest struct {
	Ops            []TxOp // request order
	RequiredLeases []string
	// The riders: arrays of operations on keys and timers, as the client has written
	// them. They alias the body, and are nil when there are none.
	KV, Timers json.RawMessage
}

// HasRiders tells whether there is an operation on a key or a timer.
func (r *TxRequest) HasRiders() bool { return r.KV != nil || r.Timers != nil }

const unknownOperation = "segments transaction supports only push and ack operations"

const (
	bitOperations uint = iota
	bitLeases
	bitKV
	bitTimers
)

// txParser reads a transaction. An operation's type may come after its other
// members, and decides what they mean; so each operation is surveyed by the
// outer parser and then read by the inner one.
type txParser struct {
	outer, inner *parser
	req          TxRequest
	operations   int // a push of no items is one
	lastPush     PushItem
	lastAck      AckItem
}

// ParseTransaction reads the body of POST /api/v1/transaction. The text of an
// unknown operation type carries no prefix: clients show it.
func ParseTransaction(body []byte) (TxRequest, error) {
	p, err := newParser(body)
	if err != nil {
		return TxRequest{}, err
	}
	t := txParser{outer: p, inner: &parser{dec: new(jsontext.Decoder)}}
	var seen uint
	if err := p.object(func(key []byte) error { return t.member(key, &seen) }); err != nil {
		return TxRequest{}, err
	}
	if err := p.finish(); err != nil {
		return TxRequest{}, err
	}
	switch {
	case t.operations > 0 || t.req.HasRiders():
		return t.req, nil
	case seen&(1<<bitOperations) == 0:
		return TxRequest{}, badBody("missing field `operations`: an array of push and ack operations is needed, or one of kv or timers operations beside it")
	}
	return TxRequest{}, badBody("operations: empty; at least one push or ack operation is needed, or one of kv or timers beside them")
}

func (t *txParser) member(key []byte, seen *uint) error {
	p := t.outer
	switch string(key) {
	case "operations":
		if err := p.once(seen, bitOperations, "operations"); err != nil {
			return err
		}
		p.push("operations")
		defer p.pop()
		return p.array(func(i int) error {
			p.at(i)
			t.operations++
			return t.operation()
		})
	case "requiredLeases":
		if err := p.once(seen, bitLeases, "requiredLeases"); err != nil {
			return err
		}
		return p.leases(&t.req)
	case "kv":
		return p.rider(&t.req.KV, seen, bitKV, "kv", p.keyOperation)
	case "timers":
		return p.rider(&t.req.Timers, seen, bitTimers, "timers", p.skip)
	}
	return p.skip()
}

func (t *txParser) operation() error {
	body, kind, err := t.outer.survey("type")
	if err != nil {
		return err
	}
	t.inner.path = append(t.inner.path[:0], t.outer.path...)
	t.inner.read(body)
	switch kind {
	case "push":
		return t.push()
	case "ack":
		ack, err := t.inner.ackObject(&t.lastAck)
		t.lastAck = ack
		ack.Group = groupOrDefault(ack.Group)
		t.req.Ops = append(t.req.Ops, TxOp{Kind: TxAck, Ack: ack})
		return err
	case "kv":
		return t.misplaced(kind, "kv")
	case "timer", "timers":
		return t.misplaced(kind, "timers")
	}
	return &Error{http.StatusBadRequest, unknownOperation}
}

// misplaced refuses an operation that is written where pushes and acks are.
func (t *txParser) misplaced(kind, array string) error {
	return t.outer.fail("a %q operation is not allowed here; it belongs into the array %q at the TOP LEVEL of the request, beside %q",
		kind, array, "operations")
}

// survey passes over an operation and tells what kind of one it is by a member, ""
// for none.
func (p *parser) survey(member string) (body []byte, kind string, err error) {
	typed := false
	before := p.dec.InputOffset()
	err = p.object(func(key []byte) error {
		value, err := p.dec.ReadValue()
		switch {
		case err != nil:
			return p.syntax(err)
		case string(key) != member:
			return nil
		case typed:
			return p.fail("key %q is given twice", member)
		}
		typed = true
		if value[0] == '"' { // no other value is a known word
			kind = string(unquoteKey(value))
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	body = p.body[before:p.dec.InputOffset():p.dec.InputOffset()]
	return body[bytes.IndexByte(body, '{'):], kind, nil // blanks and a comma come before
}

// push reads a push operation: a list of items, or the only one itself.
func (t *txParser) push() error {
	p := t.inner
	hasList := false
	f, err := p.txFields(&t.lastPush, func(key []byte) error {
		switch {
		case string(key) != "items":
			return p.skip()
		case hasList:
			return p.fail("key %q is given twice", "items")
		case p.dec.PeekKind() == 'n':
			return p.skip()
		}
		hasList = true
		return t.items()
	})
	if err != nil || hasList {
		return err
	}
	return t.add(&f)
}

// items reads the items of a push operation: those of a push, and what only a
// transaction takes: the data alias and the trace id.
func (t *txParser) items() error {
	p := t.inner
	p.push("items")
	defer p.pop()
	return p.array(func(i int) error {
		p.at(i)
		f, err := p.txFields(&t.lastPush, func([]byte) error { return p.skip() })
		if err != nil {
			return err
		}
		return t.add(&f)
	})
}

func (t *txParser) add(f *pushFields) error {
	item, err := t.inner.pushItem(f, true)
	t.lastPush = item
	t.req.Ops = append(t.req.Ops, TxOp{Kind: TxPush, Push: item, TraceID: f.traceID, HasTrace: f.hasTrace})
	return err
}

// txFields reads the members of one item; other gets those it does not know.
func (p *parser) txFields(last *PushItem, other func(key []byte) error) (pushFields, error) {
	var f pushFields
	err := p.object(func(key []byte) error {
		if known, err := p.pushMember(&f, key, last, true); known || err != nil {
			return err
		}
		return other(key)
	})
	return f, err
}

// trace reads a trace id: a UUID, or nothing.
func (p *parser) trace(f *pushFields) error {
	if err := p.once(&f.seen, bitTrace, "traceId"); err != nil {
		return err
	}
	p.push("traceId")
	defer p.pop()
	s, err := p.freeText("")
	if err != nil || s == "" {
		return err
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return p.fail("%q is not a UUID", clip(s))
	}
	f.traceID, f.hasTrace = id, true
	return nil
}

func (p *parser) leases(req *TxRequest) error {
	p.push("requiredLeases")
	defer p.pop()
	if p.dec.PeekKind() == 'n' {
		return p.skip()
	}
	return p.array(func(i int) error {
		p.at(i)
		id, err := p.name(KindLease, "")
		if id != "" {
			req.RequiredLeases = append(req.RequiredLeases, id)
		}
		return err
	})
}

// rider takes an array of riders as it stands, when it holds anything; each passes
// over one of them. What they say is no matter of the wire.
func (p *parser) rider(rider *json.RawMessage, seen *uint, bit uint, key string, each func() error) error {
	if err := p.once(seen, bit, key); err != nil {
		return err
	}
	p.push(key)
	defer p.pop()
	switch kind := p.dec.PeekKind(); kind {
	case 'n':
		return p.skip()
	case '[':
	default:
		return p.wrongKind("an array of operations at the TOP LEVEL of the request", kind)
	}
	before, n := p.dec.InputOffset(), 0
	err := p.array(func(i int) error {
		p.at(i)
		n++
		return each()
	})
	if err == nil && n > 0 {
		after := p.dec.InputOffset()
		text := p.body[before:after:after]
		*rider = text[bytes.IndexByte(text, '['):] // blanks and a colon come before
	}
	return err
}

// keyOperation passes over an operation on keys. Reading a prefix takes as long as it
// has keys, which is too long for a transaction.
func (p *parser) keyOperation() error {
	if p.dec.PeekKind() != '{' {
		return p.skip()
	}
	body, op, err := p.survey("op")
	switch {
	case err != nil:
		return err
	case op == "getPrefix":
		return p.fail("getPrefix is not allowed in a transaction; POST /api/v1/kv takes it")
	case tooDeep(body):
		return p.fail("nested deeper than %d levels", MaxDepth)
	}
	return nil
}
