package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/fusion"
	"github.com/queenmq/queen/services/broker/internal/mint"
)

// ErrOverloaded refuses a request of which nothing was stored.
var ErrOverloaded = admission.ErrOverloaded

// ErrHeld says that maintenance keeps pushes away from the database. Every item has
// its result, and none is stored.
var ErrHeld = errors.New("push maintenance is on")

// heldText tells the client of an item why.
const heldText = "push maintenance is on and this broker has no disk spool: nothing was stored"

// DeadlineDefault is how long a request keeps trying.
const DeadlineDefault = 10 * time.Second

// Config holds the settings of a Service. Zero values take the defaults.
type Config struct {
	// Deadline is how long after its arrival a request may start another
	// attempt (default 10 s, QUEEN_PUSH_DEADLINE_MS).
	Deadline time.Duration
}

// Deps are what a Service works with.
type Deps struct {
	Fuser     *fusion.Fuser
	Admission *admission.Gate
	IDs       *mint.Source
	Counters  *collector.Counters // nil counts nothing
	// Held says that nothing may reach the database; nil: that never happens.
	Held  func() bool
	Meter metric.Meter
}

// Service stores messages. It is safe for concurrent use.
type Service struct {
	Deps
	deadline time.Duration
	metrics  *metrics
}

// New builds a Service. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Service, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create push metrics: %w", err)
	}
	return &Service{Deps: deps, deadline: cmp.Or(cfg.Deadline, DeadlineDefault), metrics: m}, nil
}

// Push stores the items of one request and returns one result for each, in
// request order. It returns when every item has its verdict, and never while
// payload bytes are still being read: a client that leaves after admission does
// not stop its messages half way. An error (ErrOverloaded, or the context's)
// means that nothing was stored; with ErrHeld there are results all the same.
func (s *Service) Push(ctx context.Context, tenant uuid.UUID, producerSub string, items []wire.PushItem) ([]wire.PushResult, error) {
	if len(items) == 0 {
		return nil, nil
	}
	if s.Held != nil && s.Held() {
		return s.hold(ctx, items)
	}
	leave, err := s.Admission.Enter(ctx, admission.Push)
	if err != nil {
		return nil, err
	}
	defer leave()
	r, err := s.plan(tenant, producerSub, items)
	if err != nil {
		return nil, err
	}
	parts := r.parts(time.Now().Add(s.deadline))
	s.Fuser.Push(ctx, parts)
	if refused(parts) {
		return nil, ErrOverloaded
	}
	r.collect(parts)
	r.settleFollowers()
	s.metrics.results(ctx, r.results)
	r.count()
	return r.results, nil
}

// hold answers a request under maintenance.
func (s *Service) hold(ctx context.Context, items []wire.PushItem) ([]wire.PushResult, error) {
	r := &request{Service: s, items: items, results: make([]wire.PushResult, len(items))}
	if err := r.mint(); err != nil {
		return nil, err
	}
	for i := range r.results {
		r.results[i].Status, r.results[i].Error = wire.StatusFailed, heldText
	}
	s.metrics.results(ctx, r.results)
	return r.results, ErrHeld
}
