package browse

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
)

// millis is how the management routes write an instant.
const millis = "2006-01-02T15:04:05.000Z"

// found is one message where it is stored.
type found struct {
	offset int64
	at     time.Time
	frame  segment.Frame
}

// Message shows one message whole: the newest one of a lane with that transaction id.
// The error is ErrNotFound, ErrDecode, or that of the database.
func (s *Service) Message(ctx context.Context, tenant, partition uuid.UUID, txn string) ([]byte, error) {
	m, err := s.find(ctx, tenant, partition, txn)
	if err != nil {
		return nil, err
	}
	state, err := s.Store.MessageState(ctx, tenant, partition, m.offset)
	if err != nil {
		return nil, err
	}
	if state == nil { // deleted meanwhile
		return nil, ErrNotFound
	}
	doc := make(map[string]any)
	if err := json.Unmarshal(state, &doc); err != nil {
		return nil, fmt.Errorf("read the state of a message: %w", err)
	}
	payload := shown(m.frame.Payload)
	for key, value := range map[string]any{
		"id": m.frame.MessageID, "transactionId": m.frame.TransactionID, "traceId": traceOf(&m.frame),
		"producerSub": orNil(m.frame.ProducerSub), "createdAt": m.at.UTC().Format(millis),
		"isEncrypted": m.frame.Encrypted, "data": payload, "payload": payload,
	} {
		doc[key] = value
	}
	return encode(doc)
}

// find reads a message where the sidecar says that it is, or searches for it where the
// sidecar has been purged.
func (s *Service) find(ctx context.Context, tenant, partition uuid.UUID, txn string) (found, error) {
	place, exists, err := s.Store.FindMessage(ctx, tenant, partition, segment.Hash(txn))
	switch {
	case err != nil:
		return found{}, err
	case !exists:
		return found{}, ErrNotFound
	case !place.Known:
		return s.search(ctx, partition, place.Floor, txn)
	}
	seg, exists, err := s.Store.SegmentAt(ctx, partition, place.Offset)
	switch {
	case err != nil:
		return found{}, err
	case !exists:
		return found{}, ErrNotFound
	}
	frame, err := s.Reader.Frame(seg.Blob, int(place.Offset-seg.Base))
	if err != nil {
		s.unreadable(ctx, partition, place.Offset, err)
		return found{}, ErrDecode
	}
	return found{place.Offset, seg.CreatedAt, frame}, nil
}

// search reads the segments of a lane below an offset, newest first.
func (s *Service) search(ctx context.Context, partition uuid.UUID, below int64, txn string) (found, error) {
	for left := s.cfg.ScanSegments; left > 0; {
		segs, err := s.Store.SegmentsBelow(ctx, partition, below, min(left, scanPage), scanBytes)
		switch {
		case err != nil:
			return found{}, err
		case len(segs) == 0:
			return found{}, ErrNotFound
		}
		for _, seg := range segs {
			if m, ok := s.lastIn(ctx, partition, seg, txn); ok {
				return m, nil
			}
			below = seg.Base
		}
		left -= len(segs)
	}
	return found{}, ErrNotFound
}

// lastIn is the last message of a segment with that transaction id. A segment that
// cannot be read has none.
func (s *Service) lastIn(ctx context.Context, partition uuid.UUID, seg store.Segment, txn string) (found, bool) {
	at := -1
	err := s.Reader.Unpack(seg.Blob, 0, int(seg.End-seg.Base+1), func(i int, f segment.Frame) error {
		if f.TransactionID == txn {
			at = i
		}
		return nil
	})
	if err != nil {
		s.unreadable(ctx, partition, seg.Base, err)
	}
	if at < 0 {
		return found{}, false
	}
	frame, err := s.Reader.Frame(seg.Blob, at)
	return found{seg.Base + int64(at), seg.CreatedAt, frame}, err == nil
}

func (s *Service) unreadable(ctx context.Context, partition uuid.UUID, offset int64, err error) {
	s.Logger.ErrorContext(ctx, "segment not readable", slog.String(logging.KeyPartitionID, partition.String()),
		slog.Int64(logging.KeyOffset, offset), logging.Err(err))
}
