package scrape

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// Fresh is how long an answer of the database serves, also that there is none.
	Fresh = 3 * time.Second
	// ReadTimeout bounds the call, with the wait for a connection.
	ReadTimeout = time.Second
	// quiet is the least time between two lines about a failure.
	quiet = 30 * time.Second
)

// Other is the name under which queues are added up that have no series of their own.
const Other = "other"

// Store is what a Scrape needs of the database.
type Store interface {
	PrometheusMetrics(ctx context.Context, maxQueues int) (store.PrometheusMetrics, error)
}

// Config bounds what is shown.
type Config struct {
	MaxQueues int // with series of their own
}

// Deps are what a Scrape works with.
type Deps struct {
	Store Store
	// Waiting is how many pops wait at this broker, by name of queue and all together.
	Waiting func() (byQueue map[string]int64, all int64)
	Meter   metric.Meter
	Log     *slog.Logger
}

// scrape answers those who collect. It is safe for concurrent use.
type scrape struct {
	Deps
	cfg    Config
	errors logging.Quiet // under mu, as all that follows

	mu    sync.Mutex
	until time.Time // what is known serves
	known *snapshot // nil: the last call failed
	shown map[string]bool
}

// Register makes the families part of what is collected. It fails only when an
// instrument cannot be created.
func Register(cfg Config, deps Deps) error {
	s := &scrape{Deps: deps, cfg: cfg, errors: logging.Quiet{Every: quiet}}
	var in instruments
	err := errors.Join(in.cluster(deps.Meter), in.queues(deps.Meter), in.local(deps.Meter), unbuilt(deps.Meter))
	if err != nil {
		return fmt.Errorf("create the metrics of the installation: %w", err)
	}
	_, err = deps.Meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		s.observe(ctx, &in, o)
		return nil
	}, in.all...)
	if err != nil {
		return fmt.Errorf("create the metrics of the installation: %w", err)
	}
	return nil
}

func (s *scrape) observe(ctx context.Context, in *instruments, o metric.Observer) {
	known, shown := s.look(ctx)
	if known != nil {
		in.observe(known, o)
	}
	in.observeLocal(s.parked(shown), known != nil, o)
}

// look is what the database says, nil where it does not answer, and the queues with series
// of their own as far as they were ever known. Those who look at once share a call.
func (s *scrape) look(ctx context.Context) (known *snapshot, shown map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.until) {
		return s.known, s.shown
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	m, err := s.Store.PrometheusMetrics(ctx, s.cfg.MaxQueues)
	s.until = time.Now().Add(Fresh)
	if err != nil {
		s.known = nil
		if left, ok := s.errors.Speak(); ok {
			s.Log.WarnContext(ctx, "metrics of the installation are missing", slog.Int(logging.KeyNotLogged, left), logging.Err(err))
		}
		return nil, s.shown
	}
	s.known, s.shown = newSnapshot(&m), namesOf(&m)
	return s.known, s.shown
}

// namesOf are the queues with series of their own: each has a figure of dead letters.
func namesOf(m *store.PrometheusMetrics) map[string]bool {
	names := make(map[string]bool, len(m.DeadLetters))
	for i := range m.DeadLetters {
		names[m.DeadLetters[i].Queue] = true
	}
	return names
}

// parked is how many pops wait, by what stands for their queues. Those that name no queue
// are among the others.
func (s *scrape) parked(shown map[string]bool) map[string]int64 {
	byQueue, all := s.Waiting()
	parked := make(map[string]int64, len(byQueue))
	for name, n := range byQueue {
		if shown[name] {
			parked[name] += n
			all -= n
		}
	}
	if all > 0 {
		parked[Other] += all
	}
	return parked
}
