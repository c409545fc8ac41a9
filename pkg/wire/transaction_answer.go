package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// TxResult is the outcome of one flattened operation of a committed transaction.
type TxResult struct {
	Op            TxKind
	TransactionID string
	MessageID     uuid.UUID // push
	QueueName     string    // push
	Duplicate     bool      // push: repeats an earlier item of the bundle
	DLQ           bool      // ack: the message was dead-lettered
}

// TxResponse is the answer of a transaction. What comes after Success is for one
// that failed, Results and Riders are for one that committed.
type TxResponse struct {
	TransactionID string
	Success       bool
	Reason, Error string
	Detail        string  // for people, where Error is a code
	Lost          *TxLost // with ReasonKVPrecondition
	Results       []TxResult
	// Riders are the results of the riders, rendered by AppendRiderResults.
	Riders []byte
}

// TxLost is a write of the kv rider that was required and not applied.
type TxLost struct {
	// Known tells that the other fields are set.
	Known   bool
	Index   int // in the order of the results: operations come first
	Reason  string
	Version int64           // of the key as it is, 0 for none
	Value   json.RawMessage // of the key as it is
}

// Reasons of a refused transaction.
const (
	ReasonBadRequest     = "bad_request"
	ReasonDuplicate      = "duplicate"
	ReasonAckRejected    = "ack_rejected"
	ReasonMisaligned     = "misaligned"
	ReasonDBError        = "db_error"
	ReasonKVPrecondition = "kv_precondition"
	ReasonTimerHorizon   = "timer_horizon_exceeded"
	ReasonTooLarge       = "payload_too_large"
)

// AppendTxResponse renders the answer of a transaction. The results are one flat
// array: first the operations, each item of a push for itself, then those of the
// kv array and then those of the timers array, all in the order of the request. The
// "index" of an element is its place in this array.
func AppendTxResponse(dst []byte, r TxResponse) []byte {
	dst = append(dst, `{"transactionId":`...)
	dst = appendString(dst, r.TransactionID)
	dst = append(dst, `,"success":`...)
	dst = appendBool(dst, r.Success)
	if !r.Success {
		dst = appendTxFailure(dst, &r)
	}
	dst = append(dst, `,"results":[`...)
	for i := range r.Results {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendTxResult(dst, i, &r.Results[i])
	}
	if len(r.Results) > 0 && len(r.Riders) > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, r.Riders...)
	return append(dst, "]}"...)
}

func appendTxFailure(dst []byte, r *TxResponse) []byte {
	if r.Lost != nil {
		dst = append(dst, `,"ok":false`...)
	}
	dst = append(dst, `,"reason":`...)
	dst = appendString(dst, r.Reason)
	dst = append(dst, `,"error":`...)
	dst = appendString(dst, r.Error)
	if r.Detail != "" {
		dst = append(dst, `,"detail":`...)
		dst = appendString(dst, r.Detail)
	}
	if r.Lost == nil || !r.Lost.Known {
		return dst
	}
	dst = append(dst, `,"failedIndex":`...)
	dst = strconv.AppendInt(dst, int64(r.Lost.Index), 10)
	dst = append(dst, `,"kvReason":`...)
	dst = appendString(dst, r.Lost.Reason)
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, r.Lost.Version, 10)
	dst = append(dst, `,"value":`...)
	if len(r.Lost.Value) == 0 {
		return append(dst, "null"...)
	}
	return append(dst, r.Lost.Value...)
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

// Types of the results of riders.
const (
	RiderKV    = "kv"
	RiderTimer = "timer"
)

// AppendRiderResults renders what a rider did: results is an array of objects by the
// position of the operation, which keep their members. Beside them each gets its
// place in the flat array, of which the first one takes place first, its type, and as
// "opIndex" its place in its own array. n is the number of elements.
func AppendRiderResults(dst []byte, kind string, first int, results json.RawMessage) (out []byte, n int, err error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(results), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if dec.PeekKind() != '[' {
		return dst, 0, fmt.Errorf("results of type %s are no array", kind)
	}
	if _, err := dec.ReadToken(); err != nil {
		return dst, 0, err
	}
	for ; dec.PeekKind() == '{'; n++ {
		if n > 0 || len(dst) > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendRiderResult(dst, dec, kind, first+n, n); err != nil {
			return dst, n, err
		}
	}
	if dec.PeekKind() != ']' {
		return dst, n, fmt.Errorf("result %d of type %s is no object", n, kind)
	}
	return dst, n, nil
}

func appendRiderResult(dst []byte, dec *jsontext.Decoder, kind string, index, opIndex int) ([]byte, error) {
	if _, err := dec.ReadToken(); err != nil {
		return dst, err
	}
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"type":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","opIndex":`...)
	dst = strconv.AppendInt(dst, int64(opIndex), 10)
	for dec.PeekKind() == '"' {
		start := len(dst)
		key, err := dec.ReadValue()
		if err != nil {
			return dst, err
		}
		own := isStamp(unquoteKey(key))
		dst = append(append(append(dst, ','), key...), ':')
		value, err := dec.ReadValue()
		if err != nil {
			return dst, err
		}
		dst = append(dst, value...)
		if own {
			dst = dst[:start]
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return dst, err
	}
	return append(dst, '}'), nil
}

// isStamp recognises the members that the place of a result decides.
func isStamp(key []byte) bool {
	switch string(key) {
	case "index", "type", "opIndex":
		return true
	}
	return false
}
