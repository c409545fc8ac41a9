package transact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/dedup"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/registry"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// The errors of Run, beside *wire.Error for requests this broker cannot serve.
var (
	// ErrOverloaded refuses a request that changed nothing.
	ErrOverloaded = admission.ErrOverloaded
	// ErrUnknown says that the answer of the database was lost or cannot be read: the bundle is
	// either committed or not, as a whole.
	ErrUnknown = errors.New("outcome of the transaction is unknown")
	// ErrFailed says that the bundle was rolled back, for a reason that lies not
	// in the request.
	ErrFailed = errors.New("transaction failed")
)

// Bounds of the work on one bundle.
const (
	// DeadlineDefault is how long a request keeps trying.
	DeadlineDefault = 10 * time.Second
	// letterPatience is how long the dead letters of a committed bundle are
	// tried before the lease is left to expire.
	letterPatience = 3 * time.Second
)

// Store is the part of the store that transactions need.
type Store interface {
	Transaction(ctx context.Context, t store.Transaction) (store.TransactionResult, error)
}

// Announcer hears of committed messages and timers, and of leases that have ended.
type Announcer interface {
	Wake(tenant uuid.UUID, queue, partition string)
	Released(tenant, partition uuid.UUID, group, queue, name string, full bool)
	TimerDue(at time.Time, in time.Duration)
}

// Config holds the settings of a Service. Zero values take the defaults.
type Config struct {
	// Deadline is how long a request may start another attempt (default 10 s).
	Deadline time.Duration
	// KV bounds the operations on keys (default: as kv.DefaultLimits).
	KV kv.Limits
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Packer    *segment.Packer
	Letters   *deadletter.Filer
	Admission *admission.Gate
	Announcer Announcer
	Registry  *registry.Registry // nil remembers nothing
	Marks     *dedup.Cache       // nil vouches for nothing
	IDs       *mint.Source
	Counters  *collector.Counters // nil counts nothing
	Lanes     *lanes.Memo         // names the queues for them
	Quota     Quota
	Timers    Timers
	// KeysCarried hears how many operations on keys a bundle has committed. It may be nil.
	KeysCarried func(ops int)
	Meter       metric.Meter
	Logger      *slog.Logger
}

// Service runs transactions. It is safe for concurrent use.
type Service struct {
	Deps
	deadline time.Duration
	limits   kv.Limits
	metrics  *metrics
	// failures keeps an outage from filling the log; the metrics count them all.
	failures rate.Sometimes
}

// New builds a Service. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Service, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create transaction metrics: %w", err)
	}
	return &Service{
		Deps: deps, deadline: cmp.Or(cfg.Deadline, DeadlineDefault), limits: cmp.Or(cfg.KV, kv.DefaultLimits()), metrics: m,
		failures: rate.Sometimes{Interval: time.Second},
	}, nil
}

// Run carries out one bundle, all of it or nothing. A bundle that the database
// refused is an answer and no error. An error is ErrOverloaded, ErrUnknown,
// ErrFailed, the context's, a *wire.Error, or for riders that may not be carried out
// now a *wire.Refusal. A client that leaves after admission does not stop its bundle
// half way.
func (s *Service) Run(ctx context.Context, tenant uuid.UUID, producerSub string, req wire.TxRequest) (wire.TxResponse, error) {
	resp, err := s.run(ctx, tenant, producerSub, req)
	s.metrics.answered(ctx, resp, err)
	if errors.Is(err, ErrUnknown) || errors.Is(err, ErrFailed) || resp.Reason == wire.ReasonDBError {
		s.Counters.DatabaseFailed()
	}
	return resp, err
}

func (s *Service) run(ctx context.Context, tenant uuid.UUID, producerSub string, req wire.TxRequest) (wire.TxResponse, error) {
	r, err := s.board(tenant, &req)
	if err != nil {
		return s.decline(err)
	}
	resp, err := s.carry(ctx, tenant, producerSub, req, r)
	r.settle(resp, err)
	return resp, err
}

// carry takes a bundle to the database.
func (s *Service) carry(ctx context.Context, tenant uuid.UUID, producerSub string, req wire.TxRequest, r *riders) (wire.TxResponse, error) {
	b, err := s.plan(tenant, producerSub, req, r)
	if err != nil {
		return wire.TxResponse{}, err
	}
	if b.refusal != "" {
		return b.refused(wire.ReasonAckRejected, b.refusal), nil
	}
	b.mark(ctx)
	release, err := s.Admission.Acquire(ctx, admission.Push)
	if err != nil {
		return wire.TxResponse{}, err
	}
	defer release()
	b.recognise()
	return b.commit(context.WithoutCancel(ctx))
}

// commit submits the bundle until it has an answer, and completes what follows
// from a commit.
func (b *bundle) commit(ctx context.Context) (wire.TxResponse, error) {
	out, err := b.submit(ctx)
	if err != nil && ackRejected(err) && b.byHash() {
		out, err = b.submit(ctx)
	}
	if err != nil {
		return b.failed(ctx, err)
	}
	b.Admission.Commit()
	b.remember(out.Pushes)
	b.count()
	b.metrics.carried(ctx, b.riders)
	if b.riders != nil && b.KeysCarried != nil {
		b.KeysCarried(b.riders.keys.Ops)
	}
	b.complete(ctx, &out)
	return b.committed(&out)
}

func ackRejected(err error) bool {
	var refused *store.TxRefused
	return errors.As(err, &refused) && refused.Reason == store.TxReasonAckRejected
}

// failed answers for a bundle that has not committed, or of which nobody knows.
func (b *bundle) failed(ctx context.Context, err error) (wire.TxResponse, error) {
	var refused *store.TxRefused
	var lost *store.KVPrecondition
	text, answered := errtext.Database(err)
	var resp wire.TxResponse
	switch {
	case errors.As(err, &lost):
		resp = b.lost(lost)
	case errors.As(err, &refused):
		resp = b.refused(refused.Reason, refused.Text)
	case retry.Definite(err):
		b.putBack()
		return resp, fmt.Errorf("%w: %w", ErrFailed, err)
	case answered && !store.Ambiguous(err):
		resp = b.refused(wire.ReasonDBError, text)
	default: // no answer, or none that can be read
		return resp, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if resp.Reason == wire.ReasonDBError {
		b.complain(ctx, err)
	}
	b.putBack()
	return resp, nil
}

// complain logs what the database refused: the client has it in an answer with status
// 200, so that nothing else tells the operator. The first lane stands for all of them.
func (b *bundle) complain(ctx context.Context, err error) {
	b.failures.Do(func() {
		attrs := []slog.Attr{slog.Int(logging.KeyCount, len(b.req.Ops))}
		if i := slices.IndexFunc(b.req.Ops, func(op wire.TxOp) bool { return op.Kind == wire.TxPush }); i >= 0 {
			push := &b.req.Ops[i].Push
			attrs = append(attrs, slog.String(logging.KeyQueue, push.Queue), slog.String(logging.KeyPartition, push.Partition))
		}
		b.Logger.LogAttrs(ctx, slog.LevelError, "transaction failed", append(attrs, logging.Err(err))...)
	})
}

func (b *bundle) submit(ctx context.Context) (out store.TransactionResult, err error) {
	err = retry.Do(ctx, time.Now().Add(b.deadline), func(ctx context.Context) error {
		if b.submitted {
			b.mark(ctx)
		}
		b.submitted = true
		if b.riders != nil {
			b.riders.began = time.Now()
		}
		var err error
		out, err = b.Store.Transaction(ctx, b.tx)
		return err
	})
	return out, err
}
