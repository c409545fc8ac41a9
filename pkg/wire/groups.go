package wire

import (
	"bytes"
	"net/http"
)

// Seek is the body of a seek: where the cursors of a group are to go.
type Seek struct {
	ToEnd     bool
	Timestamp string // "" when there is none
	Empty     bool   // nothing was said at all
}

const (
	bitSeekToEnd = iota
	bitSeekTimestamp
)

// SeekFault is what a seek is told that says neither where to.
const SeekFault = "Must specify toEnd=true or a timestamp"

// ParseSeek reads the body of a seek, which may be empty. Null counts as absent, and
// the end goes before a timestamp.
func ParseSeek(body []byte) (Seek, error) {
	if len(bytes.TrimLeft(body, blanks)) == 0 {
		return Seek{Empty: true}, nil
	}
	p, err := newParser(body)
	if err != nil {
		return Seek{}, err
	}
	var s Seek
	var seen uint
	err = p.object(func(key []byte) (err error) {
		switch string(key) {
		case "toEnd":
			err = p.seekToEnd(&seen, &s.ToEnd)
		case "timestamp":
			s.Timestamp, err = p.member(&seen, bitSeekTimestamp, "timestamp", "")
		default:
			err = p.skip()
		}
		return err
	})
	if err == nil {
		err = p.finish()
	}
	s.Empty = seen == 0
	return s, err
}

func (p *parser) seekToEnd(seen *uint, dest *bool) error {
	if err := p.once(seen, bitSeekToEnd, "toEnd"); err != nil {
		return err
	}
	if p.dec.PeekKind() == 'n' {
		return p.skip()
	}
	p.push("toEnd")
	defer p.pop()
	return p.flag(dest)
}

// Check refuses a seek that does not say where to.
func (s Seek) Check() error {
	if !s.ToEnd && s.Timestamp == "" {
		return &Error{Status: http.StatusBadRequest, Text: SeekFault}
	}
	return nil
}

const bitSubscriptionTimestamp = 0

// ParseSubscription reads the body of a new subscription: its timestamp.
func ParseSubscription(body []byte) (timestamp string, err error) {
	p, err := newParser(body)
	if err != nil {
		return "", err
	}
	var seen uint
	err = p.object(func(key []byte) (err error) {
		if string(key) == "subscriptionTimestamp" {
			timestamp, err = p.member(&seen, bitSubscriptionTimestamp, "subscriptionTimestamp", "")
			return err
		}
		return p.skip()
	})
	if err == nil {
		err = p.finish()
	}
	if err == nil && timestamp == "" {
		err = badBody("missing field `subscriptionTimestamp`: an RFC 3339 instant is needed")
	}
	return timestamp, err
}
