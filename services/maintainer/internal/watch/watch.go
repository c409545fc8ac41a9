package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// Every is the time between two looks.
	Every = 10 * time.Second
	// LagEvery is the time between two looks at the lag of groups.
	LagEvery = 30 * time.Second
	// restAfterLag is the pause after a look at the lag, in multiples of what it took.
	restAfterLag = 20
	// Stale is how long what was seen is shown.
	Stale = 5 * time.Minute
	// groupsPerQueue is how many series of groups there are for each queue that has
	// series of its own, on average.
	groupsPerQueue = 2
)

// Other is the name under which groups are added up that have no series of their own.
const Other = "other"

// Store is what a Watch needs of the database.
type Store interface {
	DatabaseHealth(ctx context.Context) (store.DatabaseHealth, error)
	QueueBacklogs(ctx context.Context, maxQueues int) ([]store.QueueBacklog, error)
	GroupLags(ctx context.Context, maxQueues int) ([]store.GroupLag, error)
	RetentionSwitchedOff(ctx context.Context) (queues int64, err error)
}

// Config bounds what is shown.
type Config struct {
	MaxQueues int // with series of their own
}

// Deps are what a Watch works with.
type Deps struct {
	Store Store
	Log   *slog.Logger
	Meter metric.Meter
}

// Watch looks at the database.
type Watch struct {
	cfg     Config
	db      Store
	log     *slog.Logger
	nextLag time.Time
	blind   sync.Once // tells of what the role may not see

	mu       sync.Mutex
	up       bool
	health   sight[store.DatabaseHealth]
	backlogs sight[[]store.QueueBacklog]
	lags     sight[[]store.GroupLag]
	off      sight[int64] // queues whose retention is switched off
}

// sight is what a look has seen.
type sight[T any] struct {
	seen T
	at   time.Time // zero: nothing was seen yet
}

// fresh tells whether it is to be shown.
func (s *sight[T]) fresh() bool { return !s.at.IsZero() && time.Since(s.at) < Stale }

// New returns a Watch that has seen nothing yet.
func New(cfg Config, deps Deps) (*Watch, error) {
	w := &Watch{cfg: cfg, db: deps.Store, log: deps.Log}
	if err := w.register(deps.Meter); err != nil {
		return nil, fmt.Errorf("create the metrics of the database: %w", err)
	}
	return w, nil
}

// Run looks until ctx ends. No error ends it.
func (w *Watch) Run(ctx context.Context) error {
	return lifecycle.Loop{Name: "watch", Interval: Every, RunOnce: w.Look, Log: w.log}.Run(ctx)
}

// Look looks once; at the lag of groups when it is time for that.
func (w *Watch) Look(ctx context.Context) error {
	return errors.Join(w.lookAtHealth(ctx), w.lookAtQueues(ctx), w.lookAtGroups(ctx))
}

func (w *Watch) lookAtHealth(ctx context.Context) error {
	h, err := w.db.DatabaseHealth(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = err == nil
	if err == nil {
		w.health = sight[store.DatabaseHealth]{h, time.Now()}
	}
	if err == nil && h.WALBytes == nil {
		w.blind.Do(func() {
			w.log.InfoContext(ctx, "the database role is no member of pg_monitor: sessions of other roles and the size of the write-ahead log are not seen")
		})
	}
	return err
}

func (w *Watch) lookAtQueues(ctx context.Context) error {
	all, err := w.db.QueueBacklogs(ctx, w.cfg.MaxQueues)
	if err != nil {
		return err
	}
	off, err := w.db.RetentionSwitchedOff(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backlogs = sight[[]store.QueueBacklog]{all, time.Now()}
	if err == nil {
		w.off = sight[int64]{off, time.Now()}
	}
	return err
}

func (w *Watch) lookAtGroups(ctx context.Context) error {
	began := time.Now()
	if began.Before(w.nextLag) {
		return nil
	}
	all, err := w.db.GroupLags(ctx, w.cfg.MaxQueues)
	now := time.Now()
	w.nextLag = began.Add(max(LagEvery, (1+restAfterLag)*now.Sub(began)))
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lags = sight[[]store.GroupLag]{bounded(all, groupsPerQueue*w.cfg.MaxQueues), now}
	return nil
}

// bounded keeps the series of the groups that lag most, and adds up the others of each
// queue.
func bounded(all []store.GroupLag, most int) []store.GroupLag {
	slices.SortFunc(all, func(a, b store.GroupLag) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Group, b.Group))
	})
	if len(all) <= most {
		return all
	}
	kept := all[:most:most]
	others, order := map[string]int64{}, []string(nil)
	for _, g := range all[most:] {
		if _, known := others[g.Queue]; !known {
			order = append(order, g.Queue)
		}
		others[g.Queue] += g.Messages
	}
	for i := range kept { // one that is called so is of them
		if n, ok := others[kept[i].Queue]; ok && kept[i].Group == Other {
			kept[i].Messages += n
			delete(others, kept[i].Queue)
		}
	}
	for _, q := range order {
		if n, ok := others[q]; ok {
			kept = append(kept, store.GroupLag{Queue: q, Group: Other, Messages: n})
		}
	}
	return kept
}
