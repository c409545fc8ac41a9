package wire

import "unicode/utf8"

// minAckItem is the shortest item that means anything, with its comma.
const minAckItem = len(`{"transactionId":"","partitionId":""},`)

// plainAck takes the acknowledgements of a plain body.
type plainAck struct {
	plain
	copied string // the body; transaction ids are parts of it
}

// parsePlainAckBatch is ParseAckBatch for a plain body.
func parsePlainAckBatch(body []byte) (req AckRequest, ok bool) {
	p := plainAck{plain: plain{body: body}}
	if !utf8.Valid(body) || !p.token('{') {
		return req, false
	}
	var group string
	for {
		key, ok := p.text()
		if !ok || !p.token(':') || !p.batchMember(&req, &group, key) {
			return req, false
		}
		if !p.token(',') {
			break
		}
	}
	if req.Items == nil || !p.token('}') || p.peek() != 0 || p.at < len(body) {
		return req, false
	}
	group = groupOrDefault(group)
	for i := range req.Items {
		req.Items[i].Group = group
	}
	return req, true
}

func (p *plainAck) batchMember(req *AckRequest, group *string, key []byte) bool {
	switch string(key) {
	case "consumerGroup":
		return p.name(group, KindGroup, "")
	case "acknowledgments":
		return req.Items == nil && p.items(req)
	}
	_, ok := p.value()
	return ok
}

func (p *plainAck) items(req *AckRequest) bool {
	if !p.token('[') {
		return false
	}
	p.copied = string(p.body)
	req.Items = []AckItem{}
	var last AckItem
	for more := p.peek() != ']'; more; more = p.token(',') {
		from := p.at
		item, ok := p.item(&last)
		if !ok || len(req.Items) == MaxElements {
			return false
		}
		if len(req.Items) == 0 {
			req.Items = make([]AckItem, 0, 1+(len(p.body)-p.at)/max(p.at-from, minAckItem))
		}
		req.Items, last = append(req.Items, item), item
	}
	return p.token(']')
}

// item takes one item. Texts that equal those of the last one are shared.
func (p *plainAck) item(last *AckItem) (item AckItem, ok bool) {
	item = newAckItem()
	if !p.token('{') {
		return item, false
	}
	for seen := uint(0); ; {
		key, ok := p.text()
		if !ok || !p.token(':') || !p.member(&item, &seen, key, last) {
			return item, false
		}
		if !p.token(',') {
			return item, p.token('}')
		}
	}
}

// member takes a member that is there for the first time.
func (p *plainAck) member(item *AckItem, seen *uint, key []byte, last *AckItem) bool {
	var bit uint
	var to, previous *string
	kind := ""
	switch string(key) {
	case "transactionId":
		bit, to, kind = bitAckTransaction, &item.TransactionID, KindTransactionID
	case "partitionId":
		bit, to, previous = bitAckPartition, &item.PartitionID, &last.PartitionID
	case "leaseId":
		bit, to, previous, kind = bitAckLease, &item.LeaseID, &last.LeaseID, KindLease
	case "status":
		bit = bitAckStatus
	case "error":
		bit, to, previous = bitAckError, &item.Error, &last.Error
	case "consumerGroup":
		bit, to, previous, kind = bitAckGroup, &item.Group, &last.Group, KindGroup
	default:
		_, ok := p.value()
		return ok
	}
	if *seen&(1<<bit) != 0 {
		return false
	}
	*seen |= 1 << bit
	if p.peek() == 'n' {
		return p.literal("null")
	}
	text, ok := p.text()
	switch {
	case !ok:
		return false
	case bit == bitAckStatus:
		item.Status = normaliseStatus(string(text))
		return true
	case bit == bitAckTransaction:
		*to = p.copied[p.at-1-len(text) : p.at-1]
	default:
		*to = shared(text, *previous)
	}
	return kind == "" || previous != nil && *to == *previous || nameFault(kind, *to) == ""
}
