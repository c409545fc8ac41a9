package wire

import "encoding/json"

// Limits of the names that a trace carries.
const (
	MaxTraceNames     = 100
	MaxTraceNameBytes = 1024
)

// Trace is the body of POST /api/v1/traces.
type Trace struct {
	TransactionID string
	PartitionID   string
	ConsumerGroup string
	EventType     string
	Data          json.RawMessage
	Names         []string
}

const (
	bitTraceTransaction = iota
	bitTracePartition
	bitTraceGroup
	bitTraceEvent
	bitTraceData
	bitTraceNames
)

// KindPartitionID is what errors call the id of a partition.
const KindPartitionID = "partitionId"

// ParseTrace reads the body of POST /api/v1/traces.
func ParseTrace(body []byte) (Trace, error) {
	p, err := newParser(body)
	if err != nil {
		return Trace{}, err
	}
	t := Trace{}
	var seen uint
	err = p.object(func(key []byte) error { return p.traceMember(&t, &seen, string(key)) })
	if err == nil {
		err = p.finish()
	}
	switch {
	case err != nil:
	case t.TransactionID == "" || t.PartitionID == "":
		err = badRequest("transactionId and partitionId are required")
	case t.Data == nil:
		err = badRequest("data is required")
	}
	if t.ConsumerGroup == "" {
		t.ConsumerGroup = QueueModeGroup
	}
	if t.EventType == "" {
		t.EventType = "info"
	}
	return t, err
}

func (p *parser) traceMember(t *Trace, seen *uint, key string) (err error) {
	switch key {
	case KindTransactionID:
		t.TransactionID, err = p.member(seen, bitTraceTransaction, key, "")
	case KindPartitionID:
		t.PartitionID, err = p.member(seen, bitTracePartition, key, "")
	case KindGroup:
		t.ConsumerGroup, err = p.member(seen, bitTraceGroup, key, "")
	case "eventType":
		err = p.nullable(seen, bitTraceEvent, key, func() (err error) {
			t.EventType, err = p.freeText("")
			return err
		})
	case "data":
		if err = p.once(seen, bitTraceData, key); err == nil {
			t.Data, err = p.raw()
		}
	case "traceNames":
		if err = p.once(seen, bitTraceNames, key); err == nil {
			t.Names, err = p.traceNames()
		}
	default:
		err = p.skip()
	}
	return err
}

// traceNames reads an array of names or a single one. What is neither is ignored, and
// so are elements that are no texts.
func (p *parser) traceNames() (names []string, err error) {
	add := func(int) error {
		if p.dec.PeekKind() != '"' {
			return p.skip()
		}
		name, err := p.freeText("")
		switch {
		case err != nil:
			return err
		case name == "":
			return nil
		case len(name) > MaxTraceNameBytes:
			return badBody("traceNames: a name is longer than %d bytes", MaxTraceNameBytes)
		case len(names) == MaxTraceNames:
			return badBody("traceNames: more than %d names", MaxTraceNames)
		}
		names = append(names, name)
		return nil
	}
	if p.dec.PeekKind() == '[' {
		err = p.array(add)
	} else {
		err = add(0)
	}
	return names, err
}
