package push

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/mint"
)

// ErrOverloaded refuses a request of which nothing was stored.
var ErrOverloaded = admission.ErrOverloaded

// Bounds of one database call.
const (
	// MaxBundleBytes is the most blob bytes of a bundle of several segments. A
	// larger segment travels alone: a lane's part of a request is one commit.
	MaxBundleBytes = 8 << 20
	// MaxBundleLanes bounds the row locks one transaction holds.
	MaxBundleLanes = 1024
)

// DeadlineDefault is how long a request keeps trying.
const DeadlineDefault = 10 * time.Second

// Store is the part of the store that pushing needs.
type Store interface {
	PushMulti(ctx context.Context, segments []store.PushSegment) ([]store.PushVerdict, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error)
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (store.QueueSettings, bool, error)
}

// Waker hears of committed messages.
type Waker interface {
	Wake(tenant uuid.UUID, queue, partition string)
}

// Config holds the settings of a Service. Zero values take the defaults.
type Config struct {
	// Deadline is how long after its admission a request may start another
	// attempt (default 10 s, QUEEN_PUSH_DEADLINE_MS).
	Deadline time.Duration
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Packer    *segment.Packer
	Reader    *segment.Reader
	Admission *admission.Gate
	Waker     Waker
	IDs       *mint.Source
	Meter     metric.Meter
	Logger    *slog.Logger
}

// Service stores messages. It is safe for concurrent use.
type Service struct {
	Deps
	deadline time.Duration
	metrics  *metrics
	frames   framePool
	// failures keeps an outage from filling the log; the metrics count them all.
	failures rate.Sometimes
}

// New builds a Service. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Service, error) {
	m, err := newMetrics(deps.Meter)
	if err != nil {
		return nil, fmt.Errorf("create push metrics: %w", err)
	}
	return &Service{
		Deps: deps, deadline: cmp.Or(cfg.Deadline, DeadlineDefault), metrics: m,
		failures: rate.Sometimes{Interval: time.Second},
	}, nil
}

// Push stores the items of one request and returns one result for each, in
// request order. It returns when every item has its verdict, and never while
// payload bytes are still being read: a client that leaves after admission does
// not stop its messages half way. An error (ErrOverloaded, or the context's)
// means that nothing was stored.
func (s *Service) Push(ctx context.Context, tenant uuid.UUID, producerSub string, items []wire.PushItem) ([]wire.PushResult, error) {
	if len(items) == 0 {
		return nil, nil
	}
	r, err := s.plan(tenant, producerSub, items)
	if err != nil {
		return nil, err
	}
	release, err := s.Admission.Acquire(ctx, admission.Push)
	if err != nil {
		return nil, err
	}
	defer release()
	r.deadline = time.Now().Add(s.deadline)
	r.run(context.WithoutCancel(ctx))
	r.settleFollowers()
	s.metrics.results(ctx, r.results)
	return r.results, nil
}
