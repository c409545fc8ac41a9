package ack

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// ErrOverloaded refuses a request that changed nothing.
var ErrOverloaded = admission.ErrOverloaded

// DeadlineDefault is how long a request keeps trying.
const DeadlineDefault = 10 * time.Second

// Store is the part of the store that acknowledging needs.
type Store interface {
	AckByHash(ctx context.Context, partition uuid.UUID, group, worker string, hashes [][16]byte, statuses []store.AckStatus) (store.AckOutcome, error)
	RenewLease(ctx context.Context, worker string, seconds int) (renewed int, expiresAt string, err error)
}

// Waker hears of lanes that have become claimable; full says that nothing of the
// batch is to be delivered again.
type Waker interface {
	Released(tenant, partitionID uuid.UUID, group, queue, partition string, full bool)
}

// Config holds the settings of a Service. Zero values take the defaults.
type Config struct {
	// Deadline is how long a request may start another attempt (default 10 s).
	Deadline time.Duration
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Letters   *deadletter.Filer
	Admission *admission.Gate
	Waker     Waker
	Lanes     *lanes.Memo
	Meter     metric.Meter
	Logger    *slog.Logger
}

// Service carries out acknowledgements. It is safe for concurrent use.
type Service struct {
	Deps
	deadline time.Duration
	metrics  *metrics
	// failures keeps an outage from filling the log; the metrics count them all.
	failures rate.Sometimes
}

// New builds a Service. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Service, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create ack metrics: %w", err)
	}
	return &Service{
		Deps: deps, deadline: cmp.Or(cfg.Deadline, DeadlineDefault), metrics: m,
		failures: rate.Sometimes{Interval: time.Second},
	}, nil
}

// Ack carries out the acknowledgements of one request and returns one result for
// each, in request order. Groups of one partition, lease and consumer group are
// independent: a failing one does not affect the others. A client that leaves
// after admission does not stop its acknowledgements half way. An error
// (ErrOverloaded, or the context's) means that nothing was changed.
func (s *Service) Ack(ctx context.Context, tenant uuid.UUID, req wire.AckRequest) ([]wire.AckResult, error) {
	results := make([]wire.AckResult, len(req.Items))
	for i := range req.Items {
		results[i].Index, results[i].TransactionID = i, req.Items[i].TransactionID
	}
	groups := split(req.Items, results)
	if len(groups) > 0 {
		if err := s.run(ctx, tenant, req.Items, results, groups); err != nil {
			return nil, err
		}
	}
	s.metrics.acknowledged(ctx, req.Items, results)
	return results, nil
}

// run works through the groups one after another under one slot.
func (s *Service) run(ctx context.Context, tenant uuid.UUID, items []wire.AckItem, results []wire.AckResult, groups []*group) error {
	release, err := s.Admission.Acquire(ctx, admission.Ack)
	if err != nil {
		return err
	}
	defer release()
	// A group must not be left half done because its client did not wait.
	work := context.WithoutCancel(ctx)
	deadline := time.Now().Add(s.deadline)
	for _, g := range groups {
		s.runGroup(work, deadline, tenant, items, results, g)
	}
	return nil
}

// Extend renews every live lease of a worker.
func (s *Service) Extend(ctx context.Context, _ uuid.UUID, leaseID string, seconds int) (wire.ExtendResult, error) {
	release, err := s.Admission.Acquire(ctx, admission.Ack)
	if err != nil {
		return wire.ExtendResult{}, err
	}
	defer release()
	res := wire.ExtendResult{LeaseID: leaseID}
	err = retry.Do(ctx, time.Now().Add(s.deadline), func(ctx context.Context) error {
		var err error
		res.Renewed, res.ExpiresAt, err = s.Store.RenewLease(ctx, leaseID, seconds)
		return err
	})
	return res, err
}
