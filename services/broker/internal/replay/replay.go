package replay

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// Prefix is what the transaction id of a replayed message begins with; the id of its
// dead letter follows. So a letter that is replayed twice is a duplicate.
const Prefix = "dlq:"

// DeadlineDefault is how long a move keeps trying.
const DeadlineDefault = 10 * time.Second

// Store is the part of the store that a move needs.
type Store interface {
	DLQReplay(ctx context.Context, r store.Replay) (store.Replayed, error)
}

// Announcer hears of committed messages.
type Announcer interface {
	Wake(tenant uuid.UUID, queue, partition string)
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Packer    *segment.Packer
	IDs       *mint.Source
	Announcer Announcer
	Counters  *collector.Counters // nil counts nothing
}

// Service moves dead letters. It is safe for concurrent use.
type Service struct {
	deadline time.Duration
	Deps
}

// New returns a service whose moves keep trying until the deadline, the default when
// that is zero.
func New(deadline time.Duration, deps Deps) *Service {
	return &Service{cmp.Or(deadline, DeadlineDefault), deps}
}

// Move is one letter on its way to a lane.
type Move struct {
	Tenant           uuid.UUID
	ProducerSub      string // who asks, "" for nobody
	Letter           store.Letter
	Queue, Partition string
}

// Moved is the outcome of a Move.
type Moved struct {
	store.Replayed
	MessageID     uuid.UUID // of the new message; zero when it was not stored
	TransactionID string
}

// Move writes the letter as a new message at the end of a lane and deletes it, in one
// transaction, and announces the message. After an error nothing was done, unless
// store.Ambiguous says that the answer was lost.
func (s *Service) Move(ctx context.Context, m Move) (Moved, error) {
	id, err := s.IDs.New()
	if err != nil {
		return Moved{}, err
	}
	txn := Prefix + m.Letter.ID.String()
	blob, hash, err := s.Packer.Pack([]segment.Frame{{
		MessageID: id, TransactionID: txn, ProducerSub: m.ProducerSub, Payload: m.Letter.Payload,
	}})
	if err != nil {
		return Moved{}, err
	}
	var out store.Replayed
	err = retry.Do(ctx, time.Now().Add(s.deadline), func(ctx context.Context) (err error) {
		out, err = s.Store.DLQReplay(ctx, store.Replay{
			Tenant: m.Tenant, ID: m.Letter.ID, Queue: m.Queue, Partition: m.Partition, Hash: hash, Blob: blob,
		})
		return err
	})
	if err != nil {
		return Moved{}, err
	}
	if out.Result != store.ReplayMoved {
		return Moved{Replayed: out, TransactionID: txn}, nil
	}
	s.Announcer.Wake(m.Tenant, m.Queue, m.Partition)
	var t collector.Tally
	t.Add(collector.Queue(m.Tenant, m.Queue), &collector.Counts{PushMessages: 1})
	s.Counters.AddTally(&t, &collector.Counts{})
	return Moved{Replayed: out, MessageID: id, TransactionID: txn}, nil
}
