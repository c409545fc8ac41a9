package wire

import (
	"errors"
	"math"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Defaults of a pop.
const (
	DefaultBatch      = 200
	DefaultPartitions = 1
)

// Subscription modes after normalisation.
const (
	ModeAll = "all"
	ModeNew = "new"
)

// PopQuery is the query of any pop route.
type PopQuery struct {
	Batch        int // at least 1
	Partitions   int // 0: no limit
	LeaseSeconds int // 0: the queue's own
	AutoAck      bool
	Wait         bool
	Timeout      time.Duration
	Group        string
	SubMode      string // ModeAll or ModeNew
	SubFrom      string
	Namespace    string
	Task         string
}

// PopDefaults is what the operator configures for pops.
type PopDefaults struct {
	Timeout time.Duration
	SubMode string
}

// query reads typed parameters and keeps the first problem. Of a repeated
// parameter the first value counts.
type query struct {
	values url.Values
	err    error
}

// ParsePopQuery reads the parameters of a pop. A value that is not of its
// parameter's type refuses the request; unknown parameters are ignored.
// autopilot is accepted and means nothing here. A timeout of 0 does not wait; its
// upper bound is that of 32 bits, 24 days: a parked pop costs little, and ends
// with its connection.
func ParsePopQuery(values url.Values, d PopDefaults) (PopQuery, error) {
	q := query{values: values}
	p := PopQuery{
		Batch:        q.integer("batch", DefaultBatch),
		Partitions:   max(q.integer("partitions", DefaultPartitions), 0),
		LeaseSeconds: max(q.integer("leaseSeconds", 0), 0),
		AutoAck:      q.boolean("autoAck"),
		Wait:         q.boolean("wait"),
		Timeout:      q.timeout(d.Timeout),
		Group:        groupOrDefault(q.text(KindGroup)),
		SubMode:      d.SubMode,
		SubFrom:      q.instant("subscriptionFrom"),
		Namespace:    q.text(KindNamespace),
		Task:         q.text(KindTask),
	}
	q.boolean("autopilot")
	if q.boolean("conflation") && q.err == nil {
		q.err = badRequest("conflation is not supported by this broker; leave the parameter out")
	}
	if p.Batch <= 0 {
		p.Batch = DefaultBatch
	}
	if len(p.Group)+len(p.Namespace)+len(p.Task) > MaxSubscriptionBytes && q.err == nil {
		q.err = badRequest("consumerGroup, namespace and task: longer than %d bytes together", MaxSubscriptionBytes)
	}
	if mode := values.Get("subscriptionMode"); mode != "" {
		p.SubMode = normaliseMode(mode)
	}
	return p, q.err
}

// normaliseMode: "new" and "new-only" start at the tail, anything else at the
// oldest retained message.
func normaliseMode(sent string) string {
	if sent == ModeNew || sent == "new-only" {
		return ModeNew
	}
	return ModeAll
}

func (q *query) fail(name, value, allowed string) {
	if q.err == nil {
		q.err = badRequest("%s=%q: %s is allowed", name, clip(value), allowed)
	}
}

func (q *query) integer(name string, def int) int {
	if !q.values.Has(name) {
		return def
	}
	v := q.values.Get(name)
	n, err := strconv.ParseInt(v, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange):
		q.fail(name, v, int32Range)
	case err != nil:
		q.fail(name, v, "a whole number")
	}
	return int(n)
}

func (q *query) boolean(name string) bool {
	switch v := q.values.Get(name); {
	case !q.values.Has(name), v == "false":
		return false
	case v == "true":
		return true
	default:
		q.fail(name, v, "true or false")
		return false
	}
}

// timeout is in milliseconds; 0 answers at once.
func (q *query) timeout(def time.Duration) time.Duration {
	ms := q.integer("timeout", int(min(def.Milliseconds(), math.MaxInt32)))
	if ms < 0 {
		q.fail("timeout", q.values.Get("timeout"), "0 or more milliseconds")
	}
	return time.Duration(ms) * time.Millisecond
}

// text reads a name, whose kind is also the parameter's name.
func (q *query) text(kind string) string {
	v := q.values.Get(kind)
	if err := CheckName(kind, v); err != nil && q.err == nil {
		q.err = err
	}
	return v
}

// instant never refuses: a first contact must not fail on a time that cannot be
// read, and what could not even be sent to the database is none.
func (q *query) instant(name string) string {
	v := q.values.Get(name)
	if nameFault(name, v) != "" {
		return unreadable
	}
	return v
}

// unreadable stands for a time that no database would take as text.
const unreadable = "unreadable"

// PopHeader is what all messages of one answer share.
type PopHeader struct {
	Queue             string
	Partition         string // of the first claimed partition
	PartitionID       string
	LeaseID           string // "" under autoAck
	Group             string
	PartitionsClaimed int
}

// PopMessage is one delivered message.
type PopMessage struct {
	ID            uuid.UUID
	TransactionID string
	TraceID       uuid.UUID
	HasTrace      bool
	Data          []byte // JSON, spliced as it is
	ProducerSub   string // "" is null
}

// PopTail is what the messages of one stored segment share.
type PopTail struct {
	CreatedAt   string
	PartitionID string
	Partition   string
	Attempt     int
}

// AppendPopStart opens the answer of a pop; messages follow, then AppendPopEnd.
func AppendPopStart(dst []byte, h PopHeader) []byte {
	dst = append(dst, `{"success":true,"queue":`...)
	dst = appendString(dst, h.Queue)
	dst = append(dst, `,"partition":`...)
	dst = appendString(dst, h.Partition)
	dst = append(dst, `,"partitionId":`...)
	dst = appendString(dst, h.PartitionID)
	dst = append(dst, `,"leaseId":`...)
	dst = appendString(dst, h.LeaseID)
	dst = append(dst, `,"consumerGroup":`...)
	dst = appendString(dst, h.Group)
	return append(dst, `,"messages":[`...)
}

// AppendPopMessage renders one message; all but the first follow a comma. tail is
// what AppendPopTail made for the messages it belongs to.
func AppendPopMessage(dst []byte, first bool, m *PopMessage, tail []byte) []byte {
	if !first {
		dst = append(dst, ',')
	}
	dst = append(dst, `{"id":`...)
	dst = appendUUID(dst, m.ID)
	dst = append(dst, `,"transactionId":`...)
	dst = appendString(dst, m.TransactionID)
	dst = append(dst, `,"traceId":`...)
	if m.HasTrace {
		dst = appendUUID(dst, m.TraceID)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"data":`...)
	dst = append(dst, m.Data...)
	dst = append(dst, `,"producerSub":`...)
	dst = appendOptional(dst, m.ProducerSub)
	return append(dst, tail...)
}

// AppendPopTail renders how the messages of one stored segment end: what they
// share, and what makes up most of a small one.
func AppendPopTail(dst []byte, h *PopHeader, t *PopTail) []byte {
	dst = append(dst, `,"createdAt":`...)
	dst = appendString(dst, t.CreatedAt)
	dst = append(dst, `,"partitionId":`...)
	dst = appendString(dst, t.PartitionID)
	dst = append(dst, `,"partition":`...)
	dst = appendString(dst, t.Partition)
	dst = append(dst, `,"leaseId":`...)
	dst = appendString(dst, h.LeaseID)
	dst = append(dst, `,"consumerGroup":`...)
	dst = appendString(dst, h.Group)
	dst = append(dst, `,"deliveryAttempt":`...)
	dst = strconv.AppendInt(dst, int64(t.Attempt), 10)
	return append(dst, '}')
}

// AppendPopEnd closes the answer of a pop.
func AppendPopEnd(dst []byte, h PopHeader) []byte {
	dst = append(dst, `],"partitionsClaimed":`...)
	dst = strconv.AppendInt(dst, int64(h.PartitionsClaimed), 10)
	return append(dst, '}')
}
