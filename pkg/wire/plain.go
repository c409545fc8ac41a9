package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// plain walks a body that looks as nearly every body does. It has no errors: what
// it does not take is left to the parser, which then says what is wrong, or that
// nothing is. So it may take less than the parser, but never more or otherwise.
type plain struct {
	body []byte
	at   int
}

// plainDepth is how deep a value of a plain body is nested at most.
const plainDepth = 64

// blank passes over what may stand between two tokens.
func (p *plain) blank() {
	for p.at < len(p.body) {
		switch p.body[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// token passes over one character and the blanks before it.
func (p *plain) token(c byte) bool {
	p.blank()
	if p.at == len(p.body) || p.body[p.at] != c {
		return false
	}
	p.at++
	return true
}

// peek is the next character that is no blank; 0 at the end.
func (p *plain) peek() byte {
	p.blank()
	if p.at == len(p.body) {
		return 0
	}
	return p.body[p.at]
}

// text takes a string without escapes.
func (p *plain) text() (inner []byte, ok bool) {
	if !p.token('"') {
		return nil, false
	}
	n := bytes.IndexByte(p.body[p.at:], '"')
	if n < 0 {
		return nil, false
	}
	inner = p.body[p.at : p.at+n]
	p.at += n + 1
	return inner, verbatimRun(inner) == n
}

// verbatimRun is the number of leading bytes that a string holds as they are:
// neither a control character nor a backslash nor a quote is among them.
func verbatimRun(s []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	n := 0
	for ; n+8 <= len(s); n += 8 {
		w := binary.LittleEndian.Uint64(s[n:])
		slash, quote := w^('\\'*ones), w^('"'*ones)
		// The lowest bit that is set is right: borrows only go upwards.
		found := ((w - ' '*ones) &^ w) | ((slash - ones) &^ slash) | ((quote - ones) &^ quote)
		if found &= highs; found != 0 {
			return n + bits.TrailingZeros64(found)/8
		}
	}
	for n < len(s) && s[n] >= ' ' && s[n] != '\\' && s[n] != '"' {
		n++
	}
	return n
}

// value takes any value.
func (p *plain) value() (raw []byte, ok bool) {
	p.blank()
	from := p.at
	ok = p.skip(0)
	return p.body[from:p.at:p.at], ok
}

func (p *plain) skip(depth int) bool {
	switch c := p.peek(); c {
	case '"':
		return p.skipString()
	case '{':
		return depth < plainDepth && p.skipObject(depth+1)
	case '[':
		return depth < plainDepth && p.skipArray(depth+1)
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	default:
		return p.skipNumber()
	}
}

func (p *plain) literal(text string) bool {
	if !bytes.HasPrefix(p.body[p.at:], []byte(text)) {
		return false
	}
	p.at += len(text)
	return true
}

func (p *plain) skipString() bool {
	p.at++
	for p.at < len(p.body) {
		p.at += verbatimRun(p.body[p.at:])
		if p.at == len(p.body) {
			return false
		}
		switch p.body[p.at] {
		case '"':
			p.at++
			return true
		case '\\':
			if !p.skipEscape() {
				return false
			}
		default:
			return false
		}
	}
	return false
}

func (p *plain) skipEscape() bool {
	if p.at+1 >= len(p.body) {
		return false
	}
	c := p.body[p.at+1]
	p.at += 2
	if c != 'u' {
		return bytes.IndexByte([]byte(`"\/bfnrt`), c) >= 0
	}
	const digits = 4
	if p.at+digits > len(p.body) {
		return false
	}
	for _, c := range p.body[p.at : p.at+digits] {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	p.at += digits
	return true
}

func (p *plain) skipObject(depth int) bool {
	p.at++
	if p.token('}') {
		return true
	}
	for {
		if p.peek() != '"' || !p.skipString() || !p.token(':') || !p.skip(depth) {
			return false
		}
		if !p.token(',') {
			return p.token('}')
		}
	}
}

func (p *plain) skipArray(depth int) bool {
	p.at++
	if p.token(']') {
		return true
	}
	for {
		if !p.skip(depth) {
			return false
		}
		if !p.token(',') {
			return p.token(']')
		}
	}
}

func (p *plain) skipNumber() bool {
	if p.is('-') {
		p.at++
	}
	switch {
	case p.is('0'):
		p.at++
	case !p.digits():
		return false
	}
	if p.is('.') {
		p.at++
		if !p.digits() {
			return false
		}
	}
	if p.is('e') || p.is('E') {
		p.at++
		if p.is('+') || p.is('-') {
			p.at++
		}
		return p.digits()
	}
	return true
}

func (p *plain) is(c byte) bool { return p.at < len(p.body) && p.body[p.at] == c }

// digits passes over one digit or more.
func (p *plain) digits() bool {
	from := p.at
	for p.at < len(p.body) && p.body[p.at] >= '0' && p.body[p.at] <= '9' {
		p.at++
	}
	return p.at > from
}

// parsePlainPush is ParsePush for a plain body.
func parsePlainPush(body []byte) (items []PushItem, ok bool) {
	p := plain{body: body}
	if !utf8.Valid(body) || !p.token('{') {
		return nil, false
	}
	if key, ok := p.text(); !ok || string(key) != "items" || !p.token(':') || !p.token('[') {
		return nil, false
	}
	var last PushItem
	for more := p.peek() != ']'; more; more = p.token(',') {
		from := p.at
		if last, ok = p.pushItem(last); !ok || len(items) == MaxElements {
			return nil, false
		}
		if items == nil {
			items = make([]PushItem, 0, 1+(len(body)-p.at)/max(p.at-from, minPushItem))
		}
		items = append(items, last)
	}
	if items == nil {
		items = []PushItem{}
	}
	if !p.token(']') || !p.token('}') {
		return nil, false
	}
	return items, p.peek() == 0 && p.at == len(body)
}

// pushItem takes one item. Names that equal those of the last one are shared.
func (p *plain) pushItem(last PushItem) (item PushItem, ok bool) {
	if !p.token('{') {
		return item, false
	}
	for {
		key, ok := p.text()
		if !ok || !p.token(':') || !p.pushMember(&item, key, &last) {
			return item, false
		}
		if !p.token(',') {
			break
		}
	}
	if item.Partition == "" {
		item.Partition = DefaultPartition
	}
	return item, item.Queue != "" && item.Payload != nil && p.token('}')
}

// pushMember takes a member. One that is there already, or that is empty, is for
// the parser.
func (p *plain) pushMember(item *PushItem, key []byte, last *PushItem) bool {
	switch string(key) {
	case "queue":
		return p.name(&item.Queue, KindQueue, last.Queue)
	case "partition":
		return p.name(&item.Partition, KindPartition, last.Partition)
	case "transactionId":
		return p.name(&item.TransactionID, KindTransactionID, "")
	case "payload":
		raw, ok := p.value()
		ok = ok && item.Payload == nil
		item.Payload = raw
		return ok
	}
	_, ok := p.value()
	return ok
}

func (p *plain) name(to *string, kind, previous string) bool {
	text, ok := p.text()
	if !ok || *to != "" || len(text) == 0 {
		return false
	}
	*to = shared(text, previous)
	return *to == previous || nameFault(kind, *to) == ""
}
