package wire

import (
	"bytes"
	"strings"
)

// Destination is where a dead letter goes; an empty name is that of its source.
type Destination struct {
	Queue     string
	Partition string
}

const (
	bitReplayQueue = iota
	bitReplayPartition
)

// ParseReplay reads the body of POST /api/v1/dlq/:id/replay, which may be empty.
func ParseReplay(body []byte) (Destination, error) {
	if len(bytes.TrimLeft(body, blanks)) == 0 {
		return Destination{}, nil
	}
	p, err := newParser(body)
	if err != nil {
		return Destination{}, err
	}
	var d Destination
	var seen uint
	err = p.object(func(key []byte) (err error) {
		switch string(key) {
		case KindQueue:
			d.Queue, err = p.destination(&seen, bitReplayQueue, KindQueue)
		case KindPartition:
			d.Partition, err = p.destination(&seen, bitReplayPartition, KindPartition)
		default:
			err = p.skip()
		}
		return err
	})
	if err == nil {
		err = p.finish()
	}
	return d, err
}

// destination reads a name that must not be blank where it is given.
func (p *parser) destination(seen *uint, bit uint, kind string) (string, error) {
	given := p.dec.PeekKind() == '"'
	name, err := p.member(seen, bit, kind, "")
	if err != nil {
		return "", err
	}
	if name = strings.TrimSpace(name); given && name == "" {
		return "", badRequest("%s must not be blank; leave it out to keep that of the dead letter", kind)
	}
	return name, nil
}
