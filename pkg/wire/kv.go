package wire

import (
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The members that the body of a route of one key may have, and that are passed on.
const (
	kvValue uint = iota
	kvTTL
	kvForever
	kvExpect
	kvRequired
	kvInPath // those that are in the path already
	kvOther
)

func kvMember(key []byte) uint {
	switch string(key) {
	case "value":
		return kvValue
	case "ttlSeconds":
		return kvTTL
	case "forever":
		return kvForever
	case "expect":
		return kvExpect
	case "required":
		return kvRequired
	case "op", "ns", "namespace", "key":
		return kvInPath
	}
	return kvOther
}

// FieldInPathError is the error of a body that names what the path has named.
type FieldInPathError struct{ Field string }

// Error implements error.
func (e *FieldInPathError) Error() string {
	return "field `" + e.Field + "` is in the path and must not be in the body"
}

// ParseKVPut reads the body of a put by path: its members as they follow those of
// the path, `,"value":1,"forever":true` for one.
func ParseKVPut(body []byte) ([]byte, error) { return kvMembers(body, kvValue) }

// ParseKVDelete reads the body of a delete by path, which may be empty or null, as
// ParseKVPut does.
func ParseKVDelete(body []byte) ([]byte, error) {
	if len(body) == 0 {
		return nil, nil
	}
	return kvMembers(body, kvExpect)
}

// kvMembers passes on the members from first on.
func kvMembers(body []byte, first uint) ([]byte, error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	if first == kvExpect && p.dec.PeekKind() == 'n' {
		if err := p.skip(); err != nil {
			return nil, err
		}
		return nil, p.finish()
	}
	var members []byte
	var seen uint
	err = p.object(func(key []byte) error {
		m := kvMember(key)
		switch {
		case m == kvInPath:
			return &FieldInPathError{string(key)}
		case m == kvOther || m < first:
			return p.skip()
		}
		if err := p.once(&seen, m, string(key)); err != nil {
			return err
		}
		p.push(string(key))
		defer p.pop()
		value, err := p.raw()
		members = append(members, `,"`...)
		members = append(members, key...)
		members = append(append(members, `":`...), value...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return members, p.finish()
}

// AppendKVOperation renders an array of one operation on one key; members are those
// of a body by path.
func AppendKVOperation(dst []byte, op, namespace, key string, members []byte) []byte {
	dst = append(dst, `[{"op":"`...)
	dst = append(dst, op...)
	dst = append(dst, `","ns":`...)
	dst = appendString(dst, namespace)
	dst = append(dst, `,"key":`...)
	dst = appendString(dst, key)
	dst = append(dst, members...)
	return append(dst, `}]`...)
}

// KVPage is the body of a listing of keys.
type KVPage struct {
	Namespace, Prefix, After string
	Limit                    int // 0 for none
	KeysOnly, IncludeExpired bool
}

// ParseKVPage reads the body of a listing. A limit may be any whole number; the
// nearest one that is allowed counts.
func ParseKVPage(body []byte) (KVPage, error) {
	var page KVPage
	p, err := newParser(body)
	if err != nil {
		return page, err
	}
	var seen uint
	err = p.object(func(key []byte) error {
		bit, read := p.pageMember(&page, key)
		if read == nil {
			return p.skip()
		}
		if err := p.once(&seen, bit, string(key)); err != nil {
			return err
		}
		p.push(string(key))
		defer p.pop()
		if p.dec.PeekKind() == 'n' {
			return p.skip()
		}
		return read()
	})
	if err != nil {
		return page, err
	}
	return page, p.finish()
}

func (p *parser) pageMember(page *KVPage, key []byte) (bit uint, read func() error) {
	switch string(key) {
	case "namespace":
		return 0, func() error { return p.text(&page.Namespace) }
	case "prefix":
		return 1, func() error { return p.text(&page.Prefix) }
	case "after":
		return 2, func() error { return p.text(&page.After) }
	case "limit":
		return 3, func() error { return p.pageLimit(&page.Limit) }
	case "keysOnly":
		return 4, func() error { return p.flag(&page.KeysOnly) }
	case "includeExpired":
		return 5, func() error { return p.flag(&page.IncludeExpired) }
	}
	return 0, nil
}

// text reads a string that PostgreSQL can hold.
func (p *parser) text(dest *string) error {
	quoted, err := p.quoted()
	if err != nil {
		return err
	}
	unquoted, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return p.fail("holds an unpaired surrogate")
	}
	for _, c := range unquoted {
		if c == 0 {
			return p.fail("holds a zero character")
		}
	}
	*dest = string(unquoted)
	return nil
}

func (p *parser) flag(dest *bool) error {
	switch kind := p.dec.PeekKind(); kind {
	case 't', 'f':
		*dest = kind == 't'
		return p.skip()
	default:
		return p.wrongKind("a boolean", kind)
	}
}

// maxKVPage is the longest page of keys.
const maxKVPage = 1000

func (p *parser) pageLimit(dest *int) error {
	if kind := p.dec.PeekKind(); kind != '0' {
		return p.wrongKind("a whole number", kind)
	}
	value, err := p.raw()
	if err != nil {
		return err
	}
	n, _ := strconv.ParseFloat(string(value), 64) // infinite when it is out of range
	if n >= 1 && n <= maxKVPage && n != float64(int(n)) {
		return p.fail("a whole number is allowed here, got %s", clip(value))
	}
	*dest = int(max(1, min(n, maxKVPage)))
	return nil
}

// AppendResults renders the answer of a batch of operations on keys or timers.
// results is an array.
func AppendResults(dst, results []byte) []byte {
	dst = append(dst, `{"results":`...)
	return append(append(dst, results...), '}')
}

// KVLost is the outcome of operations that were not carried out because a required
// one of them was not applied.
type KVLost struct {
	Known   bool // the other fields are set
	Index   int
	Reason  string
	Version int64
	Value   json.RawMessage
}

// AppendKVLost renders it as the answer of a route.
func AppendKVLost(dst []byte, l KVLost) []byte {
	dst = append(dst, `{"ok":false,"reason":"kv_precondition"`...)
	if !l.Known {
		return append(dst, '}')
	}
	dst = append(dst, `,"failedIndex":`...)
	dst = strconv.AppendInt(dst, int64(l.Index), 10)
	dst = append(dst, `,"kvReason":`...)
	dst = appendString(dst, l.Reason)
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, l.Version, 10)
	dst = append(dst, `,"value":`...)
	if len(l.Value) == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, l.Value...)
	}
	return append(dst, '}')
}

// SwitchChange is the body of a change of the switches of keys and timers; nil
// leaves one as it is.
type SwitchChange struct{ KV, TimersSchedule, TimersFire *bool }

// ParseSwitchChange reads it. At least one switch must be named.
func ParseSwitchChange(body []byte) (SwitchChange, error) {
	var c SwitchChange
	p, err := newParser(body)
	if err != nil {
		return c, err
	}
	var seen uint
	err = p.object(func(key []byte) error {
		bit, dest := c.member(key)
		if dest == nil {
			return p.skip()
		}
		if err := p.once(&seen, bit, string(key)); err != nil {
			return err
		}
		p.push(string(key))
		defer p.pop()
		*dest = new(bool)
		return p.flag(*dest)
	})
	if err == nil && c == (SwitchChange{}) {
		err = badBody("none of kv, timersSchedule and timersFire is given")
	}
	if err != nil {
		return SwitchChange{}, err
	}
	return c, p.finish()
}

func (c *SwitchChange) member(key []byte) (bit uint, dest **bool) {
	switch string(key) {
	case "kv":
		return 0, &c.KV
	case "timersSchedule":
		return 1, &c.TimersSchedule
	case "timersFire":
		return 2, &c.TimersFire
	}
	return 0, nil
}
