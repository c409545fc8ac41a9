package transact

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
)

// complete announces the timers of a committed bundle, files its dead letters, and
// announces its messages and the leases that it ended.
func (b *bundle) complete(ctx context.Context, out *store.TransactionResult) {
	if next := out.Timers.Next; !next.IsZero() {
		b.Announcer.TimerDue(next, b.riders.soonest())
	}
	acks, deadline := out.Acks, time.Now().Add(letterPatience)
	for n := range acks {
		released := acks[n].Released
		if acks[n].DLQ {
			released = b.file(ctx, deadline, n, &acks[n])
		}
		if a := &b.tx.Acks[n]; released {
			b.Registry.Released(a.PartitionID, a.Group, a.Worker)
			b.Announcer.Released(b.tx.Tenant, a.PartitionID, a.Group, "", "",
				!acks[n].DLQ && !acks[n].Dropped && completed(a))
		}
	}
	for i := range b.tx.Pushes {
		b.Announcer.Wake(b.tx.Tenant, b.tx.Pushes[i].Queue, b.tx.Pushes[i].Partition)
	}
}

// file completes one hand-off. When it cannot, the lease expires, the message
// redelivers, and its next negative acknowledgement asks for the hand-off again.
func (b *bundle) file(ctx context.Context, deadline time.Time, n int, out *store.AckOutcome) bool {
	a := &b.tx.Acks[n]
	p := deadletter.Poison{
		PartitionID: a.PartitionID, Group: a.Group, Worker: out.Worker, Offset: out.Offset,
	}
	for _, i := range b.acks[n] {
		if op := &b.req.Ops[i].Ack; op.Status != wire.AckCompleted {
			p.Reasons = append(p.Reasons, deadletter.Reason{TransactionID: op.TransactionID, Error: op.Error})
		}
	}
	refusal, err := b.Letters.File(ctx, deadline, p)
	place := []any{
		slog.String(logging.KeyPartitionID, a.PartitionID.String()),
		slog.String(logging.KeyGroup, a.Group), slog.Int64(logging.KeyOffset, out.Offset),
	}
	switch {
	case err != nil:
		b.Logger.ErrorContext(ctx, "dead-letter hand-off failed", append(place, logging.Err(err))...)
	case refusal != "": // the lane or the lease went away meanwhile: the message redelivers
		b.Logger.WarnContext(ctx, "dead-letter hand-off was refused", append(place, slog.String(logging.KeyReason, refusal))...)
	}
	if refusal == "" && err == nil {
		b.Counters.DeadLettered()
		return true
	}
	return false
}

func (b *bundle) committed(out *store.TransactionResult) (wire.TxResponse, error) {
	for n, ops := range b.acks {
		for _, i := range ops {
			b.results[i].DLQ = out.Acks[n].DLQ
		}
	}
	riders, err := b.riders.results(len(b.results), out)
	if err != nil {
		return wire.TxResponse{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return wire.TxResponse{TransactionID: b.id, Success: true, Results: b.results, Riders: riders}, nil
}

func (b *bundle) refused(reason, text string) wire.TxResponse {
	return wire.TxResponse{TransactionID: b.id, Reason: reason, Error: text}
}
