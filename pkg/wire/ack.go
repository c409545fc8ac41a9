package wire

import "strconv"

// AckItem is one acknowledgement.
type AckItem struct {
	TransactionID string
	PartitionID   string
	Status        string // one of the Ack constants
	LeaseID       string // "" acknowledges without a lease
	Error         string // the consumer's reason
	Group         string
}

// Normalised statuses of an acknowledgement.
const (
	AckCompleted = "completed"
	AckFailed    = "failed"
	AckRetry     = "retry"
	AckDLQ       = "dlq"
)

// AckRequest is the body of either ack route.
type AckRequest struct{ Items []AckItem }

// normaliseStatus is exact and case-sensitive; what it does not know has failed.
func normaliseStatus(sent string) string {
	switch sent {
	case AckCompleted, "success", "acked", "ok":
		return AckCompleted
	case AckRetry:
		return AckRetry
	case AckDLQ:
		return AckDLQ
	}
	return AckFailed
}

const (
	bitAckTransaction uint = iota
	bitAckPartition
	bitAckStatus
	bitAckLease
	bitAckError
	bitAckGroup
)

// ackMember reads a member that an acknowledgement knows. Strings that equal
// those of the last one are shared with it.
func (p *parser) ackMember(a *AckItem, seen *uint, key []byte, last *AckItem) (known bool, err error) {
	switch string(key) {
	case "transactionId":
		a.TransactionID, err = p.member(seen, bitAckTransaction, KindTransactionID, "")
	case "partitionId":
		a.PartitionID, err = p.prose(seen, bitAckPartition, "partitionId", last.PartitionID)
	case "status":
		err = p.ackStatus(a, seen)
	case "leaseId":
		a.LeaseID, err = p.member(seen, bitAckLease, KindLease, last.LeaseID)
	case "error":
		a.Error, err = p.prose(seen, bitAckError, "error", last.Error)
	case "consumerGroup":
		a.Group, err = p.member(seen, bitAckGroup, KindGroup, last.Group)
	default:
		return false, nil
	}
	return true, err
}

// prose reads free text under its key.
func (p *parser) prose(seen *uint, bit uint, key, previous string) (string, error) {
	if err := p.once(seen, bit, key); err != nil {
		return "", err
	}
	p.push(key)
	defer p.pop()
	return p.freeText(previous)
}

// ackStatus tells null, which is completed, from "", which is not.
func (p *parser) ackStatus(a *AckItem, seen *uint) error {
	if p.dec.PeekKind() == 'n' {
		if err := p.once(seen, bitAckStatus, "status"); err != nil {
			return err
		}
		return p.skip()
	}
	sent, err := p.prose(seen, bitAckStatus, "status", AckCompleted)
	a.Status = normaliseStatus(sent)
	return err
}

func newAckItem() AckItem { return AckItem{Status: AckCompleted} }

func groupOrDefault(group string) string {
	if group == "" {
		return QueueModeGroup
	}
	return group
}

// ParseAck reads the body of POST /api/v1/ack.
func ParseAck(body []byte) (AckRequest, error) {
	p, err := newParser(body)
	if err != nil {
		return AckRequest{}, err
	}
	item, err := p.ackObject(&AckItem{})
	if err != nil {
		return AckRequest{}, err
	}
	if err := p.finish(); err != nil {
		return AckRequest{}, err
	}
	item.Group = groupOrDefault(item.Group)
	return AckRequest{Items: []AckItem{item}}, nil
}

func (p *parser) ackObject(last *AckItem) (AckItem, error) {
	item := newAckItem()
	var seen uint
	err := p.object(func(key []byte) error {
		known, err := p.ackMember(&item, &seen, key, last)
		if err != nil || known {
			return err
		}
		return p.skip()
	})
	return item, err
}

// ParseAckBatch reads the body of POST /api/v1/ack/batch. The group stands at
// the top only; an item's own is not read.
func ParseAckBatch(body []byte) (AckRequest, error) {
	p, err := newParser(body)
	if err != nil {
		return AckRequest{}, err
	}
	var req AckRequest
	var group string
	var seen uint
	err = p.object(func(key []byte) (err error) {
		switch string(key) {
		case "consumerGroup":
			group, err = p.member(&seen, bitAckGroup, KindGroup, "")
			return err
		case "acknowledgments":
			if err := p.once(&seen, bitAckTransaction, "acknowledgments"); err != nil {
				return err
			}
			req.Items, err = p.ackItems()
			return err
		}
		return p.skip()
	})
	if err != nil {
		return AckRequest{}, err
	}
	if err := p.finish(); err != nil {
		return AckRequest{}, err
	}
	if seen&(1<<bitAckTransaction) == 0 {
		return AckRequest{}, badBody("missing field `acknowledgments`: an array is needed, which may be empty")
	}
	for i := range req.Items {
		req.Items[i].Group = groupOrDefault(group)
	}
	return req, nil
}

func (p *parser) ackItems() ([]AckItem, error) {
	items := []AckItem{}
	p.push("acknowledgments")
	defer p.pop()
	var last AckItem
	err := p.array(func(i int) error {
		p.at(i)
		item, err := p.ackObject(&last)
		items, last = append(items, item), item
		return err
	})
	return items, err
}

// AckResult is the verdict on one acknowledgement.
type AckResult struct {
	Index         int
	TransactionID string
	Success       bool
	Error         string // "" is null
	LeaseReleased bool
	DLQ           bool
	Noop          bool
}

// ackResultBytes is what most elements of an answer take beside their names.
const ackResultBytes = 110

// AckResultsSize is about how large the answer gets.
func AckResultsSize(rs []AckResult) int {
	if len(rs) == 0 {
		return 0
	}
	return len(rs) * (ackResultBytes + len(rs[0].TransactionID))
}

// AppendAckResults renders the answer of either ack route.
func AppendAckResults(dst []byte, rs []AckResult) []byte {
	dst = append(dst, '[')
	for i := range rs {
		r := &rs[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(r.Index), 10)
		dst = append(dst, `,"transactionId":`...)
		dst = appendString(dst, r.TransactionID)
		dst = append(dst, `,"success":`...)
		dst = appendBool(dst, r.Success)
		dst = append(dst, `,"error":`...)
		dst = appendOptional(dst, r.Error)
		dst = append(dst, `,"leaseReleased":`...)
		dst = appendBool(dst, r.LeaseReleased)
		dst = append(dst, `,"dlq":`...)
		dst = appendBool(dst, r.DLQ)
		if r.Noop {
			dst = append(dst, `,"noop":true`...)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}
