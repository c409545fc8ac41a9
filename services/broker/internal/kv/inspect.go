package kv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// Defaults of Limits, and what the database admits at the most.
const (
	MaxOpsDefault        = 256
	MaxKeysDefault       = 1024
	MaxValueBytesDefault = 65536
	MaxKeyBytesDefault   = 512

	maxOpsInTransaction  = 64
	maxKeysInTransaction = 256
)

// Pages of a prefix.
const (
	pageDefault = 100
	pageMax     = 1000
)

// Limits are the bounds of one call, checked before a connection is taken. The
// database has its own, which these can only undercut.
type Limits struct {
	MaxOps        int // operations
	MaxKeys       int // keys: one for an operation on one, all that a read of many may return
	MaxValueBytes int // of one value, as it was sent
	MaxKeyBytes   int // of one key
}

// DefaultLimits are the limits of the database, but for the keys.
func DefaultLimits() Limits {
	return Limits{MaxOps: MaxOpsDefault, MaxKeys: MaxKeysDefault, MaxValueBytes: MaxValueBytesDefault, MaxKeyBytes: MaxKeyBytesDefault}
}

// inTransaction are the limits inside a transaction.
func (l Limits) inTransaction() Limits {
	l.MaxOps = min(l.MaxOps, maxOpsInTransaction)
	l.MaxKeys = min(l.MaxKeys, maxKeysInTransaction)
	return l
}

// Demand is what operations ask for.
type Demand struct {
	Ops, Keys     int
	Reads, Writes int   // operations; an unknown one counts as a read
	Rows, Bytes   int64 // upper bounds of what may be created
}

// Quota is the demand as the gate of tenants wants it.
func (d Demand) Quota(rider bool) quota.KVDemand {
	return quota.KVDemand{Reads: d.Reads, Writes: d.Writes, Rows: d.Rows, Bytes: d.Bytes, Rider: rider}
}

// Codes and reasons of refusals. Most reasons come from the database.
const (
	CodeBadRequest = "kv_bad_request"

	ReasonBadBody  = "kv_bad_body"
	reasonOps      = "kv_too_many_ops"
	reasonKeys     = "kv_too_many_keys"
	reasonValue    = "kv_value_too_large"
	reasonKey      = "kv_key_too_large"
	reasonRepeated = CodeBadRequest
)

// Inspect looks at an array of operations: whether it keeps to the limits, and what
// it asks for. What is wrong with an operation otherwise is left to the database,
// which has the one table of that. The error is a *wire.Refusal.
func Inspect(ops json.RawMessage, l Limits, inTransaction bool) (Demand, error) {
	if inTransaction {
		l = l.inTransaction()
	}
	in, err := inspect(ops, l)
	return in.Demand, err
}

// single is the one operation of a call, if it is on a single key.
type single struct {
	namespace, key []byte // as they were sent
	writes         bool
	required       bool // or anything else is said of it
}

// inspection is what is known of a call.
type inspection struct {
	Demand
	kinds kinds
	last  single
}

// single is the operation of a call that may be carried out together with others.
func (i *inspection) single() (single, bool) {
	n := i.kinds[get] + i.kinds[put] + i.kinds[putIfAbsent] + i.kinds[remove] + i.kinds[incr]
	return i.last, i.Ops == 1 && n == 1 && !i.last.required && i.last.key != nil
}

// inspect is Inspect that tells more.
func inspect(ops json.RawMessage, l Limits) (inspection, error) {
	in, _ := inspectors.Get().(*inspector)
	if in == nil {
		in = &inspector{dec: new(jsontext.Decoder)}
	}
	defer inspectors.Put(in)
	d, err := in.inspect(ops, l)
	return inspection{Demand: d, kinds: in.kinds, last: in.last}, err
}

var inspectors sync.Pool // of *inspector

// inspector reads operations once, and copies nothing of them.
type inspector struct {
	dec    *jsontext.Decoder
	buf    bytes.Buffer
	limits Limits
	demand Demand
	kinds  kinds
	last   single
}

func (in *inspector) inspect(ops []byte, l Limits) (Demand, error) {
	in.buf = *bytes.NewBuffer(ops)
	in.dec.Reset(&in.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	in.limits, in.demand, in.kinds, in.last = l, Demand{}, kinds{}, single{}
	defer func() { in.buf = bytes.Buffer{} }() // the bytes are the caller's
	if kind := in.dec.PeekKind(); kind != '[' {
		return Demand{}, badBody("operations must be an array")
	}
	if _, err := in.dec.ReadToken(); err != nil {
		return Demand{}, badBody(err.Error())
	}
	for in.dec.PeekKind() != ']' {
		if in.demand.Ops++; in.demand.Ops > l.MaxOps {
			return Demand{}, badRequest(reasonOps, "more than %d operations in one call", l.MaxOps)
		}
		if err := in.operation(); err != nil {
			return Demand{}, err
		}
		if in.demand.Keys > l.MaxKeys {
			return Demand{}, badRequest(reasonKeys, "operation %d: more than %d keys in one call", in.demand.Ops-1, l.MaxKeys)
		}
	}
	return in.demand, nil
}

// operation is what matters of one operation.
type operation struct {
	what  int
	seen  uint
	keys  int // of getMany
	limit int // of getPrefix
	value int // bytes
	delta int // bytes
}

func (in *inspector) operation() error {
	op := operation{what: unknown, limit: pageDefault}
	in.last = single{}
	if in.dec.PeekKind() != '{' {
		if err := in.skip(); err != nil {
			return err
		}
		in.count(&op)
		return nil
	}
	if _, err := in.dec.ReadToken(); err != nil {
		return badBody(err.Error())
	}
	for in.dec.PeekKind() == '"' {
		name, err := in.dec.ReadValue()
		if err != nil {
			return badBody(err.Error())
		}
		if err := in.member(&op, unquoted(name)); err != nil {
			return err
		}
	}
	if _, err := in.dec.ReadToken(); err != nil {
		return badBody(err.Error())
	}
	in.count(&op)
	return nil
}

// The members of an operation that the database reads. Given twice, one of them
// would be looked at here and the other one there.
const (
	memberOp uint = 1 << iota
	memberKey
	memberKeys
	memberPrefix
	memberLimit
	memberValue
	memberDelta
	memberNamespace
	memberRequired
)

func memberOf(name []byte) uint {
	switch string(name) {
	case "op":
		return memberOp
	case "key":
		return memberKey
	case "keys":
		return memberKeys
	case "prefix":
		return memberPrefix
	case "limit":
		return memberLimit
	case "value":
		return memberValue
	case "delta":
		return memberDelta
	case "ns":
		return memberNamespace
	case "required":
		return memberRequired
	}
	return 0
}

func (in *inspector) member(op *operation, name []byte) error {
	m := memberOf(name)
	if op.seen&m != 0 {
		return in.fault(http.StatusBadRequest, reasonRepeated, "%q is given twice", name)
	}
	op.seen |= m
	if m == memberKeys && in.dec.PeekKind() == '[' {
		return in.keys(op)
	}
	value, err := in.dec.ReadValue()
	if err != nil {
		return badBody(err.Error())
	}
	switch m {
	case memberOp:
		op.what = kindOf(unquoted(value))
	case memberKey:
		in.last.key = value
		return in.key(value)
	case memberPrefix:
		return in.key(value)
	case memberNamespace:
		in.last.namespace = value
	case memberRequired:
		in.last.required = true
	case memberLimit:
		if n, err := strconv.ParseFloat(string(value), 64); err == nil {
			op.limit = int(max(1, min(n, pageMax)))
		}
	case memberValue:
		op.value = len(value)
	case memberDelta:
		op.delta = len(value)
	}
	if op.value > in.limits.MaxValueBytes {
		return in.fault(http.StatusRequestEntityTooLarge, reasonValue, "a value of %d bytes, %d are allowed", op.value, in.limits.MaxValueBytes)
	}
	return nil
}

// kindOf is the kind of an operation by its name.
func kindOf(name []byte) int {
	switch string(name) {
	case "get":
		return get
	case "getMany":
		return getMany
	case "getPrefix":
		return getPrefix
	case "put":
		return put
	case "putIfAbsent":
		return putIfAbsent
	case "delete":
		return remove
	case "incr":
		return incr
	}
	return unknown
}

// keys reads the keys of a getMany.
func (in *inspector) keys(op *operation) error {
	if _, err := in.dec.ReadToken(); err != nil {
		return badBody(err.Error())
	}
	for in.dec.PeekKind() != ']' {
		value, err := in.dec.ReadValue()
		if err != nil {
			return badBody(err.Error())
		}
		if op.keys++; op.keys > in.limits.MaxKeys {
			break // the count refuses it
		}
		if err := in.key(value); err != nil {
			return err
		}
	}
	if op.keys > in.limits.MaxKeys {
		return in.fault(http.StatusBadRequest, reasonKeys, "more than %d keys in one call", in.limits.MaxKeys)
	}
	_, err := in.dec.ReadToken()
	if err != nil {
		return badBody(err.Error())
	}
	return nil
}

// key checks the size of a key or a prefix.
func (in *inspector) key(value []byte) error {
	if value[0] != '"' {
		return nil // the database says what it thinks of it
	}
	if n := len(value) - len(`""`); n <= in.limits.MaxKeyBytes {
		return nil // escapes only make it shorter
	}
	if n := len(unquoted(value)); n > in.limits.MaxKeyBytes {
		return in.fault(http.StatusRequestEntityTooLarge, reasonKey, "a key of %d bytes, %d are allowed", n, in.limits.MaxKeyBytes)
	}
	return nil
}

// count adds an operation to the demand.
func (in *inspector) count(op *operation) {
	in.kinds[op.what]++
	d := &in.demand
	switch op.what {
	case put, putIfAbsent, remove, incr:
		d.Writes++
		in.last.writes = true
	default:
		d.Reads++
	}
	switch op.what {
	case getMany:
		d.Keys += op.keys
	case getPrefix:
		d.Keys += op.limit
	default:
		d.Keys++
	}
	switch op.what {
	case put, putIfAbsent:
		d.Rows++
		d.Bytes += int64(op.value)
	case incr:
		d.Rows++
		d.Bytes += int64(op.delta)
	}
}

func (in *inspector) skip() error {
	if err := in.dec.SkipValue(); err != nil {
		return badBody(err.Error())
	}
	return nil
}

// fault names the operation that is being read.
func (in *inspector) fault(status int, reason, format string, args ...any) error {
	code := CodeBadRequest
	if status == http.StatusRequestEntityTooLarge {
		code = wire.CodePayloadTooLarge
	}
	return &wire.Refusal{
		Status: status, Code: code, Reason: reason,
		Detail: fmt.Sprintf("operation %d: ", in.demand.Ops-1) + fmt.Sprintf(format, args...),
	}
}

// unquoted is the text of a JSON string; of anything else, what it looks like.
func unquoted(value []byte) []byte {
	if value[0] != '"' {
		return value
	}
	inner := value[1 : len(value)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	text, _ := jsontext.AppendUnquote(nil, value) // the database refuses what is mangled
	return text
}

// badBody refuses a body that is no JSON or none of the right form.
func badBody(detail string) error { return badRequest(ReasonBadBody, "%s", detail) }

func badRequest(reason, format string, args ...any) error {
	return &wire.Refusal{Status: http.StatusBadRequest, Code: CodeBadRequest, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}
