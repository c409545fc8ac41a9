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
	// Patience is how long a scrape waits for another answer while it has one that is not
	// old. The new one is for the next scrape then.
	Patience = 20 * time.Millisecond
	// Old is the age from which an answer has to be waited for.
	Old = 30 * time.Second
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

// Scrape answers those who collect. It is safe for concurrent use. Its Run is a lifecycle
// component.
type Scrape struct {
	Deps
	cfg    Config
	wanted chan struct{} // holds a token while somebody wants a look

	mu      sync.Mutex
	running bool
	errors  logging.Quiet
	known   *snapshot // nil: the last look failed
	at      time.Time // of that look
	shown   map[string]bool
	next    chan struct{} // closed at the end of the look that is wanted or under way; nil: none is
}

// New makes the families part of what is collected. It fails only when an instrument
// cannot be created.
func New(cfg Config, deps Deps) (*Scrape, error) {
	s := &Scrape{Deps: deps, cfg: cfg, wanted: make(chan struct{}, 1), errors: logging.Quiet{Every: quiet}}
	var in instruments
	err := errors.Join(in.cluster(deps.Meter), in.queues(deps.Meter), in.local(deps.Meter), unbuilt(deps.Meter))
	if err != nil {
		return nil, fmt.Errorf("create the metrics of the installation: %w", err)
	}
	_, err = deps.Meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		s.observe(ctx, &in, o)
		return nil
	}, in.all...)
	if err != nil {
		return nil, fmt.Errorf("create the metrics of the installation: %w", err)
	}
	return s, nil
}

// Run looks at the database whenever somebody wants to know, until ctx ends.
func (s *Scrape) Run(ctx context.Context) error {
	s.run(true)
	defer s.run(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wanted:
			s.look(ctx)
		}
	}
}

func (s *Scrape) run(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = on
	if !on {
		s.known = nil
		s.over()
	}
}

// over tells those who wait for a look. The caller holds mu.
func (s *Scrape) over() {
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

func (s *Scrape) observe(ctx context.Context, in *instruments, o metric.Observer) {
	known, shown := s.learn(ctx)
	if known != nil {
		in.observe(known, o)
	}
	in.observeLocal(s.parked(shown), known != nil, o)
}

// learn is what the database says, nil where it does not answer, and the queues with series
// of their own as far as they were ever known. Those who ask at once share a look.
func (s *Scrape) learn(ctx context.Context) (known *snapshot, shown map[string]bool) {
	if next, patience := s.ask(); next != nil {
		limit := time.NewTimer(patience)
		defer limit.Stop()
		select {
		case <-next:
		case <-limit.C:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known, s.shown
}

// ask wants a look unless what is known is fresh, and tells how long to wait for it.
func (s *Scrape) ask() (next <-chan struct{}, patience time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := time.Since(s.at)
	if !s.running || age < Fresh {
		return nil, 0
	}
	if s.next == nil {
		s.next = make(chan struct{})
		select {
		case s.wanted <- struct{}{}:
		default: // there is one
		}
	}
	if s.known != nil && age < Old {
		return s.next, Patience
	}
	return s.next, ReadTimeout
}

// look asks the database.
func (s *Scrape) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	m, err := s.Store.PrometheusMetrics(ctx, s.cfg.MaxQueues)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = time.Now()
	defer s.over()
	if err == nil {
		s.known, s.shown = newSnapshot(&m), namesOf(&m)
		return
	}
	s.known = nil
	if left, ok := s.errors.Speak(); ok {
		s.Log.WarnContext(ctx, "metrics of the installation are missing", slog.Int(logging.KeyNotLogged, left), logging.Err(err))
	}
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
func (s *Scrape) parked(shown map[string]bool) map[string]int64 {
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
