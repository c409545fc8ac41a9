package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// Rejected is the wire text for a hand-off whose message is gone.
const Rejected = "dlq rejected"

// DefaultReason is filed when no acknowledgement gave one.
const DefaultReason = "Retries exhausted"

// Store is the part of the store that the hand-off needs.
type Store interface {
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error)
	DLQHead(ctx context.Context, d store.DeadLetter) (store.DLQOutcome, error)
}

// Reason is one negative acknowledgement of the group that led to the hand-off.
type Reason struct {
	TransactionID string
	Error         string
}

// Poison is a message whose cursor stands before it, its lease still held.
type Poison struct {
	PartitionID uuid.UUID
	Group       string
	Worker      string // holder of the lease, which the ack has prolonged for the hand-off
	Offset      int64
	Reasons     []Reason
}

// Filer completes hand-offs. It is safe for concurrent use.
type Filer struct {
	store  Store
	reader *segment.Reader
	logger *slog.Logger
}

// NewFiler returns a filer over a store.
func NewFiler(s Store, r *segment.Reader, l *slog.Logger) *Filer {
	return &Filer{store: s, reader: r, logger: l}
}

// File files one message and moves its cursor past it. It returns a wire text
// when that was refused, and an error when the database failed. Attempts start
// until the deadline.
func (f *Filer) File(ctx context.Context, deadline time.Time, p Poison) (refusal string, err error) {
	letter, refusal, err := f.letter(ctx, deadline, p)
	if refusal != "" || err != nil {
		return refusal, err
	}
	return f.head(ctx, deadline, letter)
}

// letter reads the message.
func (f *Filer) letter(ctx context.Context, deadline time.Time, p Poison) (store.DeadLetter, string, error) {
	var seg store.Segment
	var found bool
	err := retry.Read(ctx, deadline, func(ctx context.Context) error {
		var err error
		seg, found, err = f.store.SegmentAt(ctx, p.PartitionID, p.Offset)
		return err
	})
	if err != nil {
		return store.DeadLetter{}, "", fmt.Errorf("read poison message: %w", err)
	}
	if !found {
		return store.DeadLetter{}, Rejected, nil // retention was faster
	}
	frame, err := f.reader.Frame(seg.Blob, int(p.Offset-seg.Base))
	if err != nil {
		f.logger.ErrorContext(ctx, "segment not readable", slog.String(logging.KeyPartitionID, p.PartitionID.String()),
			slog.Int64(logging.KeyOffset, p.Offset), logging.Err(err))
		return store.DeadLetter{}, Rejected, nil
	}
	return store.DeadLetter{
		PartitionID: p.PartitionID, Group: p.Group, Worker: p.Worker, Offset: p.Offset,
		MessageID: frame.MessageID, TransactionID: frame.TransactionID, Payload: frame.Payload,
		Error: storable(reasonFor(frame.TransactionID, p.Reasons)),
	}, "", nil
}

// head files the letter. After a lost answer it asks again; being told then that
// the lease is gone means that the first time did it.
func (f *Filer) head(ctx context.Context, deadline time.Time, letter store.DeadLetter) (refusal string, err error) {
	lost := false
	for attempt := 0; ; attempt++ {
		out, err := f.store.DLQHead(ctx, letter)
		if err == nil {
			if !out.OK && !lost {
				return out.Error, nil
			}
			return "", nil
		}
		if !retry.Definite(err) {
			if !store.Ambiguous(err) || letter.Worker == "" {
				return "", fmt.Errorf("file poison message: %w", err)
			}
			lost = true
		}
		if !retry.Pause(ctx, attempt, deadline) {
			return "", fmt.Errorf("file poison message: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// reasonFor picks the text of the acknowledgement that named the message, else
// the first text there is.
func reasonFor(transactionID string, reasons []Reason) string {
	first := ""
	for _, r := range reasons {
		if r.Error == "" {
			continue
		}
		if r.TransactionID == transactionID {
			return r.Error
		}
		if first == "" {
			first = r.Error
		}
	}
	if first == "" {
		return DefaultReason
	}
	return first
}

// storable drops what a text column refuses: a reason must not keep its message
// from being filed (design rule 9).
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}
