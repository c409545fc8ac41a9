package pop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/segment"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/batches"
	"github.com/queenmq/queen/services/broker/internal/hotlist"
	"github.com/queenmq/queen/services/broker/internal/lanes"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
	"github.com/queenmq/queen/services/broker/internal/replies"
	"github.com/queenmq/queen/services/broker/internal/tails"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

// The errors of Pop.
var (
	// ErrPool says that no database connection could be had.
	ErrPool = errors.New("pool")
	// ErrFailed says that the claim failed, or that what it claimed cannot be
	// read; a lease it may have left expires.
	ErrFailed = errors.New("pop failed")
	// ErrOverloaded refuses a request that claimed nothing.
	ErrOverloaded = admission.ErrOverloaded
)

// Route is the scope of a pop.
type Route int

// The routes.
const (
	Wildcard Route = iota // any partition of one queue
	Specific              // one partition
	Discover              // queues by namespace and task
	routes
)

// String returns the name of the route in metrics and logs.
func (r Route) String() string {
	return [routes]string{"wildcard", "specific", "discover"}[r]
}

// Request is one pop.
type Request struct {
	Tenant    uuid.UUID
	Route     Route
	Queue     string // Wildcard and Specific
	Partition string // Specific
	Query     wire.PopQuery
}

// Store is the part of the store that popping needs.
type Store interface {
	PopWildcard(ctx context.Context, queue string, p store.Pop) ([]store.Popped, error)
	PopSpecific(ctx context.Context, queue, partition string, p store.Pop) ([]store.Popped, error)
	PopDiscover(ctx context.Context, namespace, task string, p store.Pop) ([]store.Popped, error)
	PopList(ctx context.Context, queue string, partitions []string, skipWindow bool, p store.Pop) (store.PopListResult, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (store.Segment, bool, error)
	HasPending(ctx context.Context, tenant uuid.UUID, queue, group string) (bool, error)
	LanesPending(ctx context.Context, lanes []store.LaneGroup) ([]int, error)
	PopEstimate(ctx context.Context, tenant uuid.UUID, queue, group string, partitions, limit int) (int, error)
	PartitionHasPending(ctx context.Context, tenant uuid.UUID, queue, partition, group string) (bool, error)
	DiscoverHasPending(ctx context.Context, tenant uuid.UUID, namespace, task, group string) (bool, error)
	HotlistRecent(ctx context.Context, rings []store.HotlistRing, within time.Duration, limit int) ([]store.HotlistRow, error)
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (store.QueueSettings, bool, error)
}

// Deps are what a Service works with.
type Deps struct {
	Store     Store
	Reader    *segment.Reader
	Admission *admission.Gate
	Hub       *wake.Hub
	Lanes     *lanes.Memo
	// HotList serves queue-wide pops from memory; nil: the database searches.
	HotList *hotlist.List
	Batches *batches.Recorder
	// Fusion lets pops of one lane share transactions; nil: each has its own.
	Fusion *popfusion.Fuser
	// Tails knows what was written last; nil: nothing.
	Tails *tails.Cache
	// Registry remembers leased batches for their acks. It may be nil.
	Registry Registry
	// Replies lends the memory of answers; nil: they are made.
	Replies  *replies.Pool
	Counters *collector.Counters // nil counts nothing
	// OnPark is called when a pop begins to wait while none did. It may be nil, and
	// must not block.
	OnPark func()
	// Suspended says that nothing may be delivered, and that the database is not to be asked:
	// pops find nothing then. Hub.Rouse tells those that wait. nil: that never happens.
	Suspended func() bool
	IDs       *mint.Source
	Meter     metric.Meter
	Logger    *slog.Logger
}

// Registry remembers what was delivered of a partition under a lease: hashes are
// those of every frame, 16 bytes each in order of delivery, and end is the last
// offset. It keeps neither group nor hashes. lease is how long it runs.
type Registry interface {
	Delivered(partition uuid.UUID, group, worker string, end int64, hashes []byte, lease time.Duration)
}

// Service serves pops. It is safe for concurrent use.
type Service struct {
	Deps
	cfg      Config
	metrics  *metrics
	holds    *holds
	rechecks *rechecks
	contacts *contacts
	segments *segments
	scratch  sync.Pool // *rendering
	parked   atomic.Int64
}

// New builds a Service. It fails only when an instrument cannot be created.
func New(cfg Config, deps Deps) (*Service, error) {
	s := &Service{Deps: deps, cfg: cfg.withDefaults(), scratch: sync.Pool{New: func() any { return new(rendering) }}}
	var err error
	if s.metrics, err = newMetrics(deps.Meter, &s.parked); err != nil {
		return nil, fmt.Errorf("create pop metrics: %w", err)
	}
	if s.holds, err = newHolds(); err != nil {
		return nil, err
	}
	if s.contacts, err = newContacts(); err != nil {
		return nil, err
	}
	if s.segments, err = newSegments(s.cfg.SegmentCache); err != nil {
		return nil, err
	}
	s.rechecks = newRechecks(s.cfg, deps.HotList != nil)
	return s, nil
}

// suspended says whether pops are to find nothing.
func (s *Service) suspended() bool { return s.Suspended != nil && s.Suspended() }

// Waiting is how many pops wait.
func (s *Service) Waiting() int { return int(s.parked.Load()) }

// Close ends every parked pop, present and future, with an empty answer.
func (s *Service) Close() { s.Hub.Close() }

// Pop answers one request: the body of the reply, or nil when there is nothing
// to deliver. A request whose context has ended claims nothing more.
func (s *Service) Pop(ctx context.Context, req Request) ([]byte, error) {
	body, parked, err := s.Begin(ctx, req)
	if parked != nil {
		return parked.Wait(ctx)
	}
	return body, err
}
