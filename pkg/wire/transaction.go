package wire

import (
	"bytes"
	"net/http"
	"strconv"

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
	HasRiders      bool // a kv or timers array with at least one element
}

const unknownOperation = "segments transaction supports only push and ack operations"

const (
	bitOperations uint = iota
	bitLeases
	bitKV
	bitTimers
)

// ParseTransaction reads the body of POST /api/v1/transaction. The text of an
// unknown operation type carries no prefix: clients show it.
func ParseTransaction(body []byte) (TxRequest, error) {
	var req TxRequest
	p, err := newParser(body)
	if err != nil {
		return req, err
	}
	var seen uint
	operations := 0
	err = p.object(func(key []byte) error {
		switch string(key) {
		case "operations":
			if err := p.once(&seen, bitOperations, "operations"); err != nil {
				return err
			}
			var err error
			operations, err = p.operations(&req)
			return err
		case "requiredLeases":
			if err := p.once(&seen, bitLeases, "requiredLeases"); err != nil {
				return err
			}
			return p.leases(&req)
		case "kv":
			return p.rider(&req, &seen, bitKV, "kv")
		case "timers":
			return p.rider(&req, &seen, bitTimers, "timers")
		}
		return p.skip()
	})
	if err != nil {
		return req, err
	}
	if err := p.finish(); err != nil {
		return req, err
	}
	if seen&(1<<bitOperations) == 0 {
		return req, badBody("missing field `operations`: an array of push and ack operations is needed")
	}
	if operations == 0 && !req.HasRiders {
		return req, badBody("operations: empty; at least one push or ack operation is needed")
	}
	return req, nil
}

// operations reads the operations and counts them: a push of no items is one.
func (p *parser) operations(req *TxRequest) (n int, err error) {
	p.push("operations")
	defer p.pop()
	err = p.array(func(i int) error {
		p.at(i)
		n++
		return p.operation(req)
	})
	return n, err
}

// operation reads one operation, whose type may come after its other members:
// members of both kinds are gathered, then the type decides.
func (p *parser) operation(req *TxRequest) error {
	var (
		kind           string
		typed, hasList bool
		list           []TxOp
		flat           pushFields
		ack            = newAckItem()
		ackSeen        uint
		last           PushItem
	)
	err := p.object(func(key []byte) error {
		switch string(key) {
		case "type":
			if typed {
				return p.fail("key %q is given twice", "type")
			}
			typed = true
			return p.operationType(&kind)
		case "items":
			if p.dec.PeekKind() == 'n' {
				return p.skip()
			}
			hasList = true
			var err error
			list, err = p.txItems(list)
			return err
		case "transactionId": // both kinds have one, under the same rules
			_, err := p.pushMember(&flat, key, &last, true)
			ack.TransactionID = flat.item.TransactionID
			return err
		}
		if known, err := p.pushMember(&flat, key, &last, true); known || err != nil {
			return err
		}
		if known, err := p.ackMember(&ack, &ackSeen, key); known || err != nil {
			return err
		}
		return p.skip()
	})
	if err != nil {
		return err
	}
	switch kind {
	case "push":
		if hasList {
			req.Ops = append(req.Ops, list...)
			return nil
		}
		item, err := p.pushItem(&flat, true)
		req.Ops = append(req.Ops, TxOp{Kind: TxPush, Push: item, TraceID: flat.traceID, HasTrace: flat.hasTrace})
		return err
	case "ack":
		ack.Group = groupOrDefault(ack.Group)
		req.Ops = append(req.Ops, TxOp{Kind: TxAck, Ack: ack})
		return nil
	}
	return &Error{http.StatusBadRequest, unknownOperation}
}

// operationType takes any value: whatever is not a known word is an unknown type.
func (p *parser) operationType(kind *string) error {
	quoted, err := p.raw()
	if err != nil {
		return err
	}
	if bytes.HasPrefix(quoted, []byte{'"'}) {
		*kind = string(unquoteKey(quoted))
	}
	return nil
}

// txItems is pushItems with what only a transaction reads: the data alias and
// the trace id.
func (p *parser) txItems(ops []TxOp) ([]TxOp, error) {
	p.push("items")
	defer p.pop()
	var last PushItem
	err := p.array(func(i int) error {
		p.at(i)
		f, item, err := p.txItem(&last)
		ops = append(ops, TxOp{Kind: TxPush, Push: item, TraceID: f.traceID, HasTrace: f.hasTrace})
		last = item
		return err
	})
	return ops, err
}

func (p *parser) txItem(last *PushItem) (pushFields, PushItem, error) {
	var f pushFields
	err := p.object(func(key []byte) error {
		if known, err := p.pushMember(&f, key, last, true); known || err != nil {
			return err
		}
		return p.skip()
	})
	if err != nil {
		return f, f.item, err
	}
	item, err := p.pushItem(&f, true)
	return f, item, err
}

// trace reads a trace id: a UUID, or nothing.
func (p *parser) trace(f *pushFields) error {
	if err := p.once(&f.seen, bitTrace, "traceId"); err != nil {
		return err
	}
	p.push("traceId")
	defer p.pop()
	s, err := p.freeText()
	if err != nil || s == "" {
		return err
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return p.fail("%q is not a UUID", s)
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
		id, err := p.name(KindLease)
		if id != "" {
			req.RequiredLeases = append(req.RequiredLeases, id)
		}
		return err
	})
}

// rider notes whether an array of riders holds anything.
func (p *parser) rider(req *TxRequest, seen *uint, bit uint, key string) error {
	if err := p.once(seen, bit, key); err != nil {
		return err
	}
	p.push(key)
	defer p.pop()
	if p.dec.PeekKind() == 'n' {
		return p.skip()
	}
	return p.array(func(int) error {
		req.HasRiders = true
		return p.skip()
	})
}

// TxResult is the outcome of one flattened operation of a committed transaction.
type TxResult struct {
	Op            TxKind
	TransactionID string
	MessageID     uuid.UUID // push
	QueueName     string    // push
	Duplicate     bool      // push: repeats an earlier item of the bundle
	DLQ           bool      // ack: the message was dead-lettered
}

// TxResponse is the answer of a transaction. Reason and Error are for failures.
type TxResponse struct {
	TransactionID string
	Success       bool
	Reason, Error string
	Results       []TxResult
}

// Reasons of a refused transaction.
const (
	ReasonBadRequest  = "bad_request"
	ReasonDuplicate   = "duplicate"
	ReasonAckRejected = "ack_rejected"
	ReasonMisaligned  = "misaligned"
	ReasonDBError     = "db_error"
)

// AppendTxResponse renders the answer of a transaction.
func AppendTxResponse(dst []byte, r TxResponse) []byte {
	dst = append(dst, `{"transactionId":`...)
	dst = appendString(dst, r.TransactionID)
	dst = append(dst, `,"success":`...)
	dst = appendBool(dst, r.Success)
	if !r.Success {
		dst = append(dst, `,"reason":`...)
		dst = appendString(dst, r.Reason)
		dst = append(dst, `,"error":`...)
		dst = appendString(dst, r.Error)
	}
	dst = append(dst, `,"results":[`...)
	for i := range r.Results {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendTxResult(dst, i, &r.Results[i])
	}
	return append(dst, "]}"...)
}

func appendTxResult(dst []byte, i int, r *TxResult) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(i), 10)
	if r.Op == TxAck {
		dst = append(dst, `,"type":"ack","success":true,"transactionId":`...)
		dst = appendString(dst, r.TransactionID)
		dst = append(dst, `,"error":null,"dlq":`...)
		return append(appendBool(dst, r.DLQ), '}')
	}
	dst = append(dst, `,"type":"push","success":true,"transactionId":`...)
	dst = appendString(dst, r.TransactionID)
	dst = append(dst, `,"messageId":`...)
	dst = appendUUID(dst, r.MessageID)
	dst = append(dst, `,"queueName":`...)
	dst = appendString(dst, r.QueueName)
	if r.Duplicate {
		dst = append(dst, `,"duplicate":true`...)
	}
	return append(dst, '}')
}
