package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/pop"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/replies"
)

// Pusher stores messages. It must not read the items' payloads after it has
// returned: they lie in a buffer that the next request overwrites. With push.ErrHeld
// there are results too.
type Pusher interface {
	Push(ctx context.Context, tenant uuid.UUID, producerSub string, items []wire.PushItem) ([]wire.PushResult, error)
}

// Popper answers pops; a nil body means that there is nothing to deliver.
type Popper interface {
	Pop(ctx context.Context, req pop.Request) ([]byte, error)
}

// Parker is a Popper whose waiting pops need no goroutine: Begin answers a request
// or returns what goes on waiting for it.
type Parker interface {
	Begin(ctx context.Context, req pop.Request) ([]byte, *pop.Parked, error)
}

// Acker settles delivered messages and extends leases.
type Acker interface {
	Ack(ctx context.Context, tenant uuid.UUID, req wire.AckRequest) ([]wire.AckResult, error)
	Extend(ctx context.Context, tenant uuid.UUID, leaseID string, seconds int) (wire.ExtendResult, error)
}

// Transactor runs bundles of pushes and acks. The rule about payloads is the
// one of Pusher.
type Transactor interface {
	Run(ctx context.Context, tenant uuid.UUID, producerSub string, req wire.TxRequest) (wire.TxResponse, error)
}

// Keys carries out operations on keys. Its errors are *wire.Refusal.
type Keys interface {
	Apply(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (kv.Answer, error)
	List(ctx context.Context, tenant uuid.UUID, p store.KVPage) (store.RawJSON, error)
	Namespaces(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error)
}

// Switches are the operator's switches for keys and timers, and the view of quotas.
type Switches interface {
	Switches() store.KVSwitches
	RefreshSwitches(ctx context.Context) store.KVSwitches
	SetSwitches(ctx context.Context, c store.KVSwitchChange) (mirrored bool)
	Summary() quota.Summary
}

// Store is the part of the store behind the management routes.
type Store interface {
	Configure(ctx context.Context, tenant uuid.UUID, queue string, options json.RawMessage, merge bool) (store.RawJSON, error)
	DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (store.RawJSON, error)
	ListQueues(ctx context.Context, tenant uuid.UUID, cached bool) (store.RawJSON, error)
	GetQueue(ctx context.Context, tenant uuid.UUID, queue string) (store.RawJSON, error)
}

// Database is what health and the counters ask.
type Database interface {
	Ping(ctx context.Context) error
	Stat() pgdb.Stat
}

// Deps are what an API works with.
type Deps struct {
	Push        Pusher
	Pop         Popper
	Ack         Acker
	Transaction Transactor
	Keys        Keys
	Switches    Switches
	Modes       Modes
	Timers      Timers
	Store       Store
	Browser     Browser
	DeadLetters DeadLetters
	Mover       Mover
	Traces      Traces
	Groups      Groups
	GroupNews   GroupNews
	Analytics   Analytics
	Database    Database
	// Admit waits until a call of a management route may use the database, and returns
	// what gives its place back; nil: at once.
	Admit func(ctx context.Context) (release func(), err error)
	// QueueChanged hears of every queue that was configured or deleted. It may be nil.
	QueueChanged func(tenant uuid.UUID, queue string, deleted bool)
	// FlagsChanged hears of every change of a switch. It may be nil.
	FlagsChanged func()
	// Notify hears of messages that somebody else has written; the partition is
	// empty when it is not known.
	Notify func(tenant uuid.UUID, queue, partition string)
	// MeshStats is the state of the hint pool, ready to be encoded.
	MeshStats func() any
	// Replies is where the bodies of pops come from, and others may; nil: they are
	// made.
	Replies *replies.Pool

	Log        *slog.Logger
	Meter      metric.Meter
	Prometheus http.Handler
	// Tracers is nil when no spans are exported: then requests pay nothing for them.
	Tracers    trace.TracerProvider
	Propagator propagation.TextMapPropagator
}

// Config holds the bounds of the surface.
type Config struct {
	Version      string
	MaxBodyBytes int64 // of one request body
	// MaxInflightBytes bounds all bodies being worked on, and once more what is set
	// aside for their items.
	MaxInflightBytes int64
	// MaxWaiting is the number of requests that may wait for their share of it
	// (default 4096): of pushes and transactions, and as many of all others.
	MaxWaiting int
	// InflightWait is how long a request waits for its share of MaxInflightBytes
	// (default 10 s).
	InflightWait time.Duration
	// BodyPatience is how long a client may pause while it sends a body, beyond
	// what a slow line needs (default 30 s).
	BodyPatience time.Duration
	// FetchSafeFloor is how old a change of a partition must be to be told as settled
	// where sessions hide since when they write (default 30 s).
	FetchSafeFloor time.Duration
	// PopDefaults fill in what a pop does not say.
	PopDefaults wire.PopDefaults
}

// Defaults of Config.
const (
	MaxWaitingDefault   = 4096
	InflightWaitDefault = 10 * time.Second
	BodyPatienceDefault = 30 * time.Second

	FetchSafeFloorDefault = 30 * time.Second
)
