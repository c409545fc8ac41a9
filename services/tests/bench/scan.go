package main

import (
	"bytes"
	"errors"
	"fmt"
)

// message is what a consumer needs of a popped message. The texts are slices of
// the answer.
type message struct {
	transactionID, partitionID, leaseID []byte

	sent int64 // when it was due, microseconds; from the payload
}

var (
	statusMark      = []byte(`"status":`)
	queuedMark      = []byte(`"status":"queued"`)
	duplicateMark   = []byte(`"status":"duplicate"`)
	succeededMark   = []byte(`"success":true`)
	transactionMark = []byte(`"transactionId":"`)
	sentMark        = []byte(`"data":{"t":`)
	partitionMark   = []byte(`"partitionId":"`)
	leaseMark       = []byte(`"leaseId":"`)

	errMessage = errors.New("unreadable message in an answer")
)

// odd is the part of a push's answer that begins with the first status other
// than the wanted one, or the whole answer.
func odd(body, wanted []byte) []byte {
	for rest := body; ; rest = rest[1:] {
		at := bytes.Index(rest, statusMark)
		if at < 0 {
			return body
		}
		if rest = rest[at:]; !bytes.HasPrefix(rest, wanted) {
			return rest
		}
	}
}

// scanPop appends the messages of a pop's answer to dst. It relies on the order
// of the keys and on texts without escapes, which the driver's own messages have.
func scanPop(dst []message, body []byte) ([]message, error) {
	for {
		at := bytes.Index(body, transactionMark)
		if at < 0 {
			return dst, nil
		}
		body = body[at:]
		var m message
		var ok [4]bool
		m.transactionID, body, ok[0] = textAfter(body, transactionMark)
		m.sent, body, ok[1] = numberAfter(body, sentMark)
		m.partitionID, body, ok[2] = textAfter(body, partitionMark)
		m.leaseID, body, ok[3] = textAfter(body, leaseMark)
		if ok != [4]bool{true, true, true, true} {
			return dst, fmt.Errorf("%w after %d", errMessage, len(dst))
		}
		dst = append(dst, m)
	}
}

// textAfter finds the text behind a mark, which ends at the next quote.
func textAfter(body, mark []byte) (text, rest []byte, ok bool) {
	at := bytes.Index(body, mark)
	if at < 0 {
		return nil, body, false
	}
	body = body[at+len(mark):]
	end := bytes.IndexByte(body, '"')
	if end < 0 {
		return nil, body, false
	}
	return body[:end], body[end:], true
}

func numberAfter(body, mark []byte) (n int64, rest []byte, ok bool) {
	at := bytes.Index(body, mark)
	if at < 0 {
		return 0, body, false
	}
	body = body[at+len(mark):]
	if len(body) < timeDigits {
		return 0, body, false
	}
	v := number(body[:timeDigits])
	return int64(v), body[timeDigits:], v >= 0
}

// appendAcks appends the body of an ack/batch request that completes messages.
func appendAcks(dst []byte, group string, messages []message) []byte {
	dst = append(dst, `{"consumerGroup":"`...)
	dst = append(dst, group...)
	dst = append(dst, `","acknowledgments":[`...)
	for i, m := range messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		dst = append(appendAddress(dst, m), '}')
	}
	return append(dst, "]}"...)
}

// appendAck appends the body of an ack request.
func appendAck(dst []byte, group string, m message) []byte {
	dst = append(dst, `{"consumerGroup":"`...)
	dst = append(dst, group...)
	dst = append(dst, `",`...)
	return append(appendAddress(dst, m), '}')
}

func appendAddress(dst []byte, m message) []byte {
	dst = append(dst, transactionMark...)
	dst = append(dst, m.transactionID...)
	dst = append(dst, `",`...)
	dst = append(dst, partitionMark...)
	dst = append(dst, m.partitionID...)
	dst = append(dst, `",`...)
	dst = append(dst, leaseMark...)
	dst = append(dst, m.leaseID...)
	return append(dst, '"')
}
