package pop

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/wake"
)

const (
	// recheckTick is how often the topics that are due for a re-check are sought.
	recheckTick = 100 * time.Millisecond
	// recheckMax is the longest pause between two re-checks of a topic that the
	// hot list serves: they cost nothing but memory (design rule 11).
	recheckMax = time.Second
	// recheckBatch is how many lanes one statement asks about.
	recheckBatch = 1024
	// recheckPatience bounds one statement of a re-check.
	recheckPatience = 5 * time.Second
)

// watch is what the waiting pops of one topic share: the re-check for what
// nothing announces, be it a lost hint or a lease that has expired.
type watch struct {
	topic     wake.Topic
	route     Route
	query     [3]string // group, namespace and task
	memory    bool      // the hot list serves it: a re-check costs no statement
	users     int
	due       time.Time
	fruitless int // re-checks since the topic was last announced
	// seen are the lanes of the last glance, if nobody was served since.
	seen map[uuid.UUID]struct{}
}

// rechecks holds the topics that somebody waits for.
type rechecks struct {
	cfg     Config
	hot     bool // there is a hot list
	mu      sync.Mutex
	watches map[wake.Topic]*watch
	glanced time.Time // last glance
}

func newRechecks(cfg Config, hot bool) *rechecks {
	return &rechecks{cfg: cfg, hot: hot, watches: make(map[wake.Topic]*watch)}
}

// pause is how long a topic is left alone.
func (r *rechecks) pause(w *watch) time.Duration {
	if w.memory {
		return recheckMax
	}
	return r.cfg.interval(w.fruitless)
}

// join counts one more pop that waits for a topic. Its own first look is the
// re-check of this moment.
func (r *rechecks) join(t wake.Topic, req *Request) *watch {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.watches[t]
	if w == nil {
		w = &watch{topic: t, route: req.Route, query: [3]string{req.Query.Group, req.Query.Namespace, req.Query.Task}}
		w.memory = r.hot && req.Route == Wildcard
		w.due = time.Now().Add(r.pause(w))
		r.watches[t] = w
	}
	w.users++
	return w
}

// leave takes back what join gave. Where one was served, what is there now is news.
func (r *rechecks) leave(w *watch, served bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if served {
		w.seen = nil
	}
	if w.users--; w.users == 0 {
		delete(r.watches, w.topic)
	}
}

// stir starts the growth of a topic's pauses anew.
func (r *rechecks) stir(w *watch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.fruitless = 0
	if soon := time.Now().Add(r.pause(w)); soon.Before(w.due) {
		w.due = soon
	}
}

// take returns copies of the topics that are due now, and sets their next time.
func (r *rechecks) take() (due [routes][]watch) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.watches {
		if now.Before(w.due) {
			continue
		}
		due[w.route] = append(due[w.route], *w)
		w.fruitless++
		w.due = now.Add(r.pause(w))
	}
	return due
}

// Run re-checks what parked pops wait for, once for all that wait for the same,
// and derives the rings that pops have found missing, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range seeders {
		wg.Go(func() { s.runSeeds(ctx) })
	}
	t := time.NewTicker(recheckTick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			s.recheck(ctx)
		}
	}
}

// recheck wakes one pop of every due topic that may find something. Those that
// the hot list serves look in memory, which also tells the list that somebody
// waits; the list itself reads what was written lately.
func (s *Service) recheck(ctx context.Context) {
	due := s.rechecks.take()
	for i := range due[Wildcard] {
		if w := &due[Wildcard][i]; w.memory || s.asked(ctx, func(ctx context.Context) (bool, error) {
			return s.Store.HasPending(ctx, w.topic.Tenant, w.topic.Queue, w.query[0])
		}) {
			s.Hub.Found(w.topic)
		}
	}
	for i := range due[Discover] {
		if w := &due[Discover][i]; !s.cfg.PendingGate || s.asked(ctx, func(ctx context.Context) (bool, error) {
			return s.Store.DiscoverHasPending(ctx, w.topic.Tenant, w.query[1], w.query[2], w.query[0])
		}) {
			s.Hub.Found(w.topic)
		}
	}
	for lanes := due[Specific]; len(lanes) > 0; {
		n := min(len(lanes), recheckBatch)
		s.recheckLanes(ctx, lanes[:n])
		lanes = lanes[n:]
	}
}

// asked is the answer of a probe. What cannot be learnt now is asked again.
func (s *Service) asked(ctx context.Context, probe func(context.Context) (bool, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, recheckPatience)
	defer cancel()
	pending, err := probe(ctx)
	s.rechecked(ctx, err)
	return pending && err == nil
}

func (s *Service) recheckLanes(ctx context.Context, watches []watch) {
	if !s.cfg.PendingGate {
		for i := range watches {
			s.Hub.Found(watches[i].topic)
		}
		return
	}
	lanes := make([]store.LaneGroup, len(watches))
	for i := range watches {
		t := &watches[i].topic
		lanes[i] = store.LaneGroup{Tenant: t.Tenant, Queue: t.Queue, Partition: t.Partition, Group: watches[i].query[0]}
	}
	ctx, cancel := context.WithTimeout(ctx, recheckPatience)
	defer cancel()
	found, err := s.Store.LanesPending(ctx, lanes)
	s.rechecked(ctx, err)
	for _, i := range found {
		s.Hub.Found(watches[i].topic)
	}
}

func (s *Service) rechecked(ctx context.Context, err error) {
	s.metrics.rechecked(ctx, err)
	if err != nil {
		s.Logger.DebugContext(ctx, "re-check failed", logging.Err(err))
	}
}
