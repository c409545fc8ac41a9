package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// ErrOverloaded says that a request found no slot within the bounds. Nothing
// was done for it, so repeating it later is safe.
var ErrOverloaded = errors.New("overloaded")

// RetryAfter is what a refused client is told to wait before it asks again.
const RetryAfter = time.Second

// Class is the kind of work a slot is taken for.
type Class int

// The classes. A transaction counts as a push: both hold lane locks.
const (
	Push Class = iota
	Pop
	Ack
	classes
)

// String returns the name of the class in metrics and logs.
func (c Class) String() string {
	return [classes]string{"push", "pop", "ack"}[c]
}

// wakeOrder is the order in which waiting classes are served when a slot is
// free: finishing work before handing out work before taking in more.
func wakeOrder() [classes]Class { return [classes]Class{Ack, Pop, Push} }

// Config sizes a Gate. Zero values take the defaults.
type Config struct {
	// Slots is the number of requests admitted at once (default 32). It stays
	// below the pool's size, so that a slot never waits for a connection.
	Slots int
	// Reserved is the number of slots kept for each class whatever the others
	// do (default Slots/8, at least 1 when there are slots to spare).
	Reserved int
	// MaxWaiting is the number of requests that may wait per class (default 4096).
	MaxWaiting int
	// MaxWait is how long one of them may wait (default 10 s).
	MaxWait time.Duration
}

// Defaults of Config.
const (
	SlotsDefault      = 32
	MaxWaitingDefault = 4096
	MaxWaitDefault    = 10 * time.Second
	reservedShare     = 8
)

// Gate hands out slots. Take the slot first and the connection second; waiting
// for anything but the database while holding one starves the others.
type Gate struct {
	slots, reserved, maxWaiting int
	maxWait                     time.Duration
	metrics                     *metrics

	mu      sync.Mutex
	inUse   [classes]int
	total   int
	waiting [classes]queue
}

// New builds a gate. It fails only when an instrument cannot be created.
func New(cfg Config, meter metric.Meter) (*Gate, error) {
	g := &Gate{
		slots:      cmp.Or(cfg.Slots, SlotsDefault),
		maxWaiting: cmp.Or(cfg.MaxWaiting, MaxWaitingDefault),
		maxWait:    cmp.Or(cfg.MaxWait, MaxWaitDefault),
	}
	g.reserved = cmp.Or(cfg.Reserved, max(1, g.slots/reservedShare))
	if g.slots < int(classes) {
		g.reserved = 0 // too few to set any aside
	}
	if g.slots < 1 || g.reserved*int(classes) > g.slots {
		return nil, fmt.Errorf("size admission: %d slots cannot hold %d for each of %d classes", g.slots, g.reserved, classes)
	}
	m, err := newMetrics(meter, g)
	if err != nil {
		return nil, fmt.Errorf("create admission metrics: %w", err)
	}
	g.metrics = m
	return g, nil
}

// Acquire takes a slot and returns the function that gives it back, to be
// called exactly once. It returns ErrOverloaded when the bounds are exceeded and
// the context's error when that ends first.
func (g *Gate) Acquire(ctx context.Context, c Class) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	if g.waiting[c].len == 0 && g.admits(c) {
		g.take(c)
		g.mu.Unlock()
		return func() { g.release(c) }, nil
	}
	if g.waiting[c].len >= g.maxWaiting {
		g.mu.Unlock()
		g.metrics.refused(ctx, c)
		return nil, ErrOverloaded
	}
	w := &waiter{granted: make(chan struct{})}
	g.waiting[c].push(w)
	g.mu.Unlock()
	return g.wait(ctx, c, w)
}

func (g *Gate) wait(ctx context.Context, c Class, w *waiter) (func(), error) {
	timer := time.NewTimer(g.maxWait)
	defer timer.Stop()
	var err error
	select {
	case <-w.granted:
		return func() { g.release(c) }, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = ErrOverloaded
	}
	g.mu.Lock()
	select {
	case <-w.granted:
		// Granted while giving up: the slot goes to somebody who wants it.
		g.give(c)
	default:
		g.waiting[c].remove(w)
	}
	g.mu.Unlock()
	if errors.Is(err, ErrOverloaded) {
		g.metrics.refused(ctx, c)
	}
	return nil, err
}

func (g *Gate) release(c Class) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.give(c)
}

// give returns a slot and hands on what has become free.
func (g *Gate) give(c Class) {
	g.inUse[c]--
	g.total--
	for _, next := range wakeOrder() {
		for g.waiting[next].len > 0 && g.admits(next) {
			g.take(next)
			close(g.waiting[next].pop().granted)
		}
	}
}

func (g *Gate) take(c Class) {
	g.inUse[c]++
	g.total++
}

// admits says whether a class may take a slot: one of its own reserve, or one
// that is free beyond what the other classes still have in reserve.
func (g *Gate) admits(c Class) bool {
	free := g.slots - g.total
	for other := range classes {
		if other != c {
			free -= max(0, g.reserved-g.inUse[other])
		}
	}
	return free > 0
}
