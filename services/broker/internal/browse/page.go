package browse

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

// page is a listing as the database answers it, and as it goes to the client when the
// messages have been filled in.
type page struct {
	Messages []message       `json:"messages"`
	Mode     json.RawMessage `json:"mode"`
	Total    int             `json:"total"`
	Next     string          `json:"next,omitempty"`
}

type message struct {
	ID               *uuid.UUID      `json:"id"`
	TransactionID    *string         `json:"transactionId"`
	TxnHash          string          `json:"txnHash"`
	PartitionID      uuid.UUID       `json:"partitionId"`
	QueuePath        string          `json:"queuePath"`
	Queue            string          `json:"queue"`
	Partition        string          `json:"partition"`
	Namespace        string          `json:"namespace"`
	Task             string          `json:"task"`
	QueuePriority    int             `json:"queuePriority"`
	Status           string          `json:"status"`
	QueueStatus      string          `json:"queueStatus"`
	BusStatus        json.RawMessage `json:"busStatus"`
	TraceID          *uuid.UUID      `json:"traceId"`
	ProducerSub      *string         `json:"producerSub"`
	PayloadAvailable bool            `json:"payloadAvailable"`
	IsEncrypted      bool            `json:"isEncrypted"`
	Segment          place           `json:"segment"`
	CreatedAt        string          `json:"createdAt"`
	LeaseExpiresAt   *string         `json:"leaseExpiresAt"`
	Data             json.RawMessage `json:"data"`
	Payload          json.RawMessage `json:"payload"`
	// Of a payload that is too long to be shown: its length and its beginning.
	PayloadBytes   int    `json:"payloadBytes,omitempty"`
	PayloadPreview string `json:"payloadPreview,omitempty"`
}

// place is where a message is: the segment and the frame in it.
type place struct {
	Seq      int64 `json:"seq"`
	FrameIdx int   `json:"frameIdx"`
}

// Page lists messages with what is in their segments, each of which is read once.
func (s *Service) Page(ctx context.Context, f store.MessageFilter) ([]byte, error) {
	doc, err := s.Store.ListMessages(ctx, f)
	if err != nil {
		return nil, err
	}
	var p page
	if err := json.Unmarshal(doc, &p); err != nil {
		return nil, fmt.Errorf("read the listing: %w", err)
	}
	keys, members := bySegment(p.Messages)
	segments, err := s.Store.SegmentsAt(ctx, keys, s.cfg.PageBytes)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if seg, found := segments[key]; found {
			s.fill(ctx, key, seg.Blob, members[key])
			delete(segments, key) // for the collector: the others still come
		}
	}
	return encode(&p)
}

// bySegment are the segments of some messages, in the order of these, and the messages
// of each by their frames.
func bySegment(messages []message) ([]store.SegmentKey, map[store.SegmentKey]map[int]*message) {
	var keys []store.SegmentKey
	members := make(map[store.SegmentKey]map[int]*message)
	for i := range messages {
		m := &messages[i]
		key := store.SegmentKey{PartitionID: m.PartitionID, Base: m.Segment.Seq}
		if members[key] == nil {
			keys = append(keys, key)
			members[key] = make(map[int]*message)
		}
		members[key][m.Segment.FrameIdx] = m
	}
	return keys, members
}

// fill gives the messages of one segment their contents. Where the segment is damaged
// they stay without.
func (s *Service) fill(ctx context.Context, key store.SegmentKey, blob []byte, members map[int]*message) {
	first, last := -1, -1
	for i := range members {
		if first < 0 || i < first {
			first = i
		}
		last = max(last, i)
	}
	err := s.Reader.Unpack(blob, first, last-first+1, func(i int, f segment.Frame) error {
		if m := members[i]; m != nil {
			s.reveal(m, &f)
		}
		return nil
	})
	if err != nil {
		s.unreadable(ctx, key.PartitionID, key.Base, err)
	}
}

// reveal copies a frame, which is valid only now, into its message.
func (s *Service) reveal(m *message, f *segment.Frame) {
	id, txn := f.MessageID, strings.Clone(f.TransactionID)
	m.ID, m.TransactionID = &id, &txn
	if trace := traceOf(f); trace != nil {
		copied := *trace
		m.TraceID = &copied
	}
	m.ProducerSub = orNil(strings.Clone(f.ProducerSub))
	m.IsEncrypted, m.PayloadAvailable = f.Encrypted, true
	if len(f.Payload) > s.cfg.PreviewBytes {
		m.PayloadBytes = len(f.Payload)
		m.PayloadPreview = strings.ToValidUTF8(string(f.Payload[:s.cfg.PreviewBytes]), "")
		return
	}
	m.Data = bytes.Clone(shown(f.Payload))
	m.Payload = m.Data
}
