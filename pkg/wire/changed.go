package wire

import "time"

// Bounds of the entries of POST /api/v1/partitions/changed.
const (
	ChangedEntriesMax   = 64
	ChangedLimitDefault = 1000 // and the most
)

// ChangedEntry asks for the partitions of one queue, page by page.
type ChangedEntry struct {
	Queue string
	Since *time.Time // nil: all of them
	After *string    // nil: from the start
	Limit int        // from 1 to ChangedLimitDefault
}

// ParseChanged reads the body of POST /api/v1/partitions/changed. A limit is clamped.
func ParseChanged(body []byte) ([]ChangedEntry, error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	entries := []ChangedEntry{}
	var seen uint
	err = p.object(func(key []byte) error {
		if string(key) != "entries" {
			return p.skip()
		}
		return p.nullable(&seen, 0, "entries", func() error {
			return p.array(func(i int) error {
				if i == ChangedEntriesMax {
					return badBody("entries: at most %d are allowed", ChangedEntriesMax)
				}
				p.at(i)
				e, err := p.changedEntry()
				entries = append(entries, e)
				return err
			})
		})
	})
	if err == nil {
		err = p.finish()
	}
	return entries, err
}

// nullable reads a member that counts as absent when it is null.
func (p *parser) nullable(seen *uint, bit uint, key string, read func() error) error {
	if err := p.once(seen, bit, key); err != nil {
		return err
	}
	if p.dec.PeekKind() == 'n' {
		return p.skip()
	}
	p.push(key)
	defer p.pop()
	return read()
}

const (
	bitChangedQueue = iota
	bitChangedSince
	bitChangedAfter
	bitChangedLimit
)

func (p *parser) changedEntry() (ChangedEntry, error) {
	e := ChangedEntry{Limit: ChangedLimitDefault}
	var seen uint
	err := p.object(func(key []byte) error {
		switch string(key) {
		case KindQueue:
			return p.nullable(&seen, bitChangedQueue, KindQueue, func() (err error) {
				e.Queue, err = p.name(KindQueue, "")
				return err
			})
		case "since":
			return p.nullable(&seen, bitChangedSince, "since", func() error { return p.changedSince(&e) })
		case "after":
			return p.nullable(&seen, bitChangedAfter, "after", func() error {
				after, err := p.freeText("")
				e.After = &after
				return err
			})
		case "limit":
			return p.nullable(&seen, bitChangedLimit, "limit", func() error { return p.pageLimit(&e.Limit) })
		}
		return p.skip()
	})
	if err == nil && e.Queue == "" {
		p.push(KindQueue)
		defer p.pop()
		err = p.fail("a name is needed")
	}
	return e, err
}

func (p *parser) changedSince(e *ChangedEntry) error {
	text, err := p.freeText("")
	if err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return p.fail("%q is no RFC 3339 instant", clip(text))
	}
	e.Since = &at
	return nil
}
