package ack

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/deadletter"
	"github.com/queenmq/queen/services/broker/internal/errtext"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/registry"
)

// ErrOverloaded refuses a request that changed nothing.
var ErrOverloaded = admission.ErrOverloaded

// DeadlineDefault is how long a request keeps trying.
const DeadlineDefault = 10 * time.Second

// Store is the part of the store that acknowledging needs.
type Store interface {
	AckByHash(ctx context.Context, partition uuid.UUID, group, worker string, hashes [][16]byte, statuses []store.AckStatus) (store.AckOutcome, error)
	Cursor(ctx context.Context, partition uuid.UUID, group string) (committed int64, found bool, err error)
	FindLeases(ctx context.Context, workers []string) (map[string][]store.CursorKey, error)
	RenewLanes(ctx context.Context, worker string, seconds int, at []store.CursorKey) (renewed int, expiresAt string, err error)
}

// Batches commits whole batches: an ackfusion.Fuser, or a Direct.
type Batches interface {
	Ack(ctx context.Context, batches []store.AckRow) ([]ackfusion.Verdict, error)
}

// Announcer hears of leases that have ended.
type Announcer interface {
	Released(tenant, partition uuid.UUID, group, queue, name string, full bool)
}

// Config holds the settings of a Service. Zero values take the defaults.
type Config struct {
	// Deadline is how long a request may start another attempt (default 10 s).
	Deadline time.Duration
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Batches   Batches
	Registry  *registry.Registry // nil remembers nothing
	Letters   *deadletter.Filer
	Admission *admission.Gate
	Announcer Announcer
	Counters  *collector.Counters // nil counts nothing
	Lanes     *lanes.Memo         // names the queues for them
	Meter     metric.Meter
	Logger    *slog.Logger
}

// Service carries out acknowledgements. It is safe for concurrent use.
type Service struct {
	Deps
	deadline time.Duration
	metrics  *metrics
	finder   finder
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
		finder:   finder{store: deps.Store, admission: deps.Admission},
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
	s.count(results, groups)
	return results, nil
}

// run carries out the groups: first those that go by their hashes, then the whole
// batches, and those of them that were refused by their hashes, too. Groups on one
// cursor keep their order, since a whole batch is alone on its cursor.
func (s *Service) run(ctx context.Context, tenant uuid.UUID, items []wire.AckItem, results []wire.AckResult, groups []*group) error {
	whole, rest := s.sort(groups)
	if err := s.byHash(ctx, tenant, items, results, rest); err != nil {
		s.putBack(whole...)
		return err
	}
	undone := whole
	again, err := s.commit(ctx, tenant, results, whole)
	if err == nil {
		undone = again
		err = s.byHash(context.WithoutCancel(ctx), tenant, items, results, again)
	}
	if err == nil || len(undone) == len(groups) && !slices.ContainsFunc(undone, func(g *group) bool { return g.unsure }) {
		return err
	}
	for _, g := range undone {
		g.refuse(results, errtext.Of(err))
	}
	return nil
}

// byHash works through groups one after another under one slot.
func (s *Service) byHash(ctx context.Context, tenant uuid.UUID, items []wire.AckItem, results []wire.AckResult, groups []*group) error {
	if len(groups) == 0 {
		return nil
	}
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
