package wire

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/google/uuid"
)

// PushItem is one message on its way in.
type PushItem struct {
	Queue         string
	Partition     string // DefaultPartition when the item names none
	TransactionID string // "" when it is to be minted
	Payload       []byte // aliases the body
}

// minPushItem is the length of the shortest item, with its comma. It bounds what is
// allocated ahead for a body that merely looks like one of many items.
const minPushItem = len(`{"queue":"q","payload":1},`)

// ParsePush reads the body of POST /api/v1/push. A single bad item refuses the
// whole request; the error says which and why.
func ParsePush(body []byte) ([]PushItem, error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	items := make([]PushItem, 0, min(bytes.Count(body, []byte(`"payload"`)), len(body)/minPushItem))
	found := false
	err = p.object(func(key []byte) error {
		if string(key) != "items" {
			return p.skip()
		}
		if found {
			return p.fail("key \"items\" is given twice")
		}
		found = true
		items, err = p.pushItems(items)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	if !found {
		return nil, badBody("missing field `items`: an array of messages is needed, which may be empty")
	}
	return items, nil
}

// pushItems reads an array of push items, appending to items.
func (p *parser) pushItems(items []PushItem) ([]PushItem, error) {
	p.push("items")
	defer p.pop()
	var last PushItem
	err := p.array(func(i int) error {
		p.at(i)
		var f pushFields
		if err := p.object(func(key []byte) error {
			known, err := p.pushMember(&f, key, &last, false)
			if err != nil || known {
				return err
			}
			return p.skip()
		}); err != nil {
			return err
		}
		item, err := p.pushItem(&f, false)
		if err != nil {
			return err
		}
		items, last = append(items, item), item
		return nil
	})
	return items, err
}

// pushFields gathers one item while its members come in any order.
type pushFields struct {
	item     PushItem
	seen     uint
	hasData  bool
	data     []byte // the alias a transaction accepts
	traceID  uuid.UUID
	hasTrace bool
}

const (
	bitQueue uint = iota
	bitPartition
	bitTransactionID
	bitPayload
	bitData
	bitTrace
)

// pushMember reads a member an item knows. Strings that equal the previous
// item's are shared with it: most requests repeat queue and partition.
func (p *parser) pushMember(f *pushFields, key []byte, last *PushItem, tx bool) (known bool, err error) {
	switch string(key) {
	case "queue":
		f.item.Queue, err = p.member(&f.seen, bitQueue, KindQueue, last.Queue)
	case "partition":
		f.item.Partition, err = p.member(&f.seen, bitPartition, KindPartition, last.Partition)
	case "transactionId":
		f.item.TransactionID, err = p.member(&f.seen, bitTransactionID, KindTransactionID, "")
	case "payload":
		f.item.Payload, err = p.payload(&f.seen, bitPayload, "payload")
	case "data":
		if !tx {
			return false, nil
		}
		f.hasData = true
		f.data, err = p.payload(&f.seen, bitData, "data")
	case "traceId":
		if !tx {
			return false, nil
		}
		err = p.trace(f)
	default:
		return false, nil
	}
	return true, err
}

func (p *parser) payload(seen *uint, bit uint, key string) ([]byte, error) {
	if err := p.once(seen, bit, key); err != nil {
		return nil, err
	}
	p.push(key)
	defer p.pop()
	return p.raw()
}

// pushItem checks what must be there and fills the defaults.
func (p *parser) pushItem(f *pushFields, tx bool) (PushItem, error) {
	if f.item.Queue == "" {
		return f.item, p.fail("missing field `queue`: a name of 1 to 255 characters is needed")
	}
	if f.item.Partition == "" {
		f.item.Partition = DefaultPartition
	}
	if f.item.Payload == nil {
		switch {
		case tx && f.hasData:
			f.item.Payload = f.data
		case tx:
			f.item.Payload = []byte("{}")
		default:
			return f.item, p.fail("missing field `payload`: any JSON value is allowed, null included")
		}
	}
	return f.item, nil
}

// PushResult is the verdict on one item.
type PushResult struct {
	Index         int
	MessageID     uuid.UUID
	TransactionID string
	QueueName     string
	Status        string // queued, duplicate, buffered or failed
	Error         string // why, with failed only
}

// Statuses of a PushResult.
const (
	StatusQueued    = "queued"
	StatusDuplicate = "duplicate"
	StatusBuffered  = "buffered"
	StatusFailed    = "failed"
)

// pushResultBytes is what an element of an answer takes beside its names.
const pushResultBytes = 140

// PushResultsSize is about how long the answer of a push is.
func PushResultsSize(rs []PushResult) int {
	if len(rs) == 0 {
		return 2
	}
	return 2 + len(rs)*(pushResultBytes+len(rs[0].TransactionID)+len(rs[0].QueueName))
}

// AppendPushResults renders the answer of a push.
func AppendPushResults(dst []byte, rs []PushResult) []byte {
	dst = slices.Grow(dst, PushResultsSize(rs))
	dst = append(dst, '[')
	for i := range rs {
		r := &rs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(r.Index), 10)
		dst = append(dst, `,"message_id":`...)
		dst = appendUUID(dst, r.MessageID)
		dst = append(dst, `,"transaction_id":`...)
		dst = appendString(dst, r.TransactionID)
		dst = append(dst, `,"queueName":`...)
		dst = appendString(dst, r.QueueName)
		dst = append(dst, `,"status":"`...)
		dst = append(dst, r.Status...)
		dst = append(dst, '"')
		if r.Error != "" {
			dst = append(dst, `,"error":`...)
			dst = appendString(dst, r.Error)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}
