package admission

import (
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

// maxLead is how many turns a class may be ahead of the others: what it got as
// its share while nobody else waited is not held against it for long.
const maxLead = 4

// Gate hands out slots. Take the slot first and the connection second; waiting
// for anything but the database while holding one starves the others.
type Gate struct {
	cfg     Config
	metrics *metrics

	mu     sync.Mutex
	law    law // how many slots there may be
	total  int // slots in use
	lanes  [classes]lane
	live   queue   // the admitted, oldest first
	turn   float64 // start of the turn dealt last
	trains trains
	seen   seen       // since the last tick
	shown  trainSight // of the last tick, for the metrics
}

// lane is the state of one class.
type lane struct {
	inUse   int // slots, those set aside included
	waiting queue
	entered int     // requests that wait for a shared transaction
	turn    float64 // when its next turn starts, in units of slots
}

// New builds a gate. It fails when the sizes make no sense or an instrument
// cannot be created.
func New(cfg Config, meter metric.Meter) (*Gate, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, fmt.Errorf("size admission: %w", err)
	}
	g := &Gate{cfg: cfg, law: newLaw(cfg), trains: trains{gap: cfg.TrainGap}}
	if g.metrics, err = newMetrics(meter, g); err != nil {
		return nil, fmt.Errorf("create admission metrics: %w", err)
	}
	return g, nil
}

// MaxWait is how long a request may wait for its turn. It is for those who keep
// requests waiting after Enter.
func (g *Gate) MaxWait() time.Duration { return g.cfg.MaxWait }

// Acquire takes a slot and returns the function that gives it back, to be
// called exactly once. It returns ErrOverloaded when the bounds are exceeded and
// the context's error when that ends first.
func (g *Gate) Acquire(ctx context.Context, c Class) (release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &ticket{class: c}
	g.mu.Lock()
	l := &g.lanes[c]
	if l.waiting.len == 0 && g.admits(c) {
		g.take(c)
		g.admit(t)
		g.mu.Unlock()
		return g.releaser(t), nil
	}
	if g.crowded(c) {
		g.mu.Unlock()
		g.metrics.refused(ctx, c)
		return nil, ErrOverloaded
	}
	t.granted, t.since = make(chan struct{}), time.Now()
	l.waiting.push(t)
	g.mu.Unlock()
	return g.wait(ctx, t)
}

func (g *Gate) wait(ctx context.Context, t *ticket) (func(), error) {
	timer := time.NewTimer(g.cfg.MaxWait)
	defer timer.Stop()
	var err error
	select {
	case <-t.granted:
		return g.releaser(t), nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = ErrOverloaded
	}
	g.mu.Lock()
	select {
	case <-t.granted:
		// Granted while giving up: the slot goes to somebody who wants it.
		g.live.remove(t)
		g.give(t.class)
	default:
		g.lanes[t.class].waiting.remove(t)
	}
	g.mu.Unlock()
	if errors.Is(err, ErrOverloaded) {
		g.metrics.refused(ctx, t.class)
	}
	return nil, err
}

// Enter counts a request that waits for a shared transaction, until leave, which
// is to be called exactly once. It returns ErrOverloaded at once when too many
// wait already. Whoever keeps the request waiting withdraws it after MaxWait.
func (g *Gate) Enter(ctx context.Context, c Class) (leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	if g.crowded(c) {
		g.mu.Unlock()
		g.metrics.refused(ctx, c)
		return nil, ErrOverloaded
	}
	g.lanes[c].entered++
	g.mu.Unlock()
	return func() {
		g.mu.Lock()
		g.lanes[c].entered--
		g.mu.Unlock()
	}, nil
}

// Commit tells of a transaction that was committed just now. Slots are given
// back at other moments too, so this is what the flush cycle is read from.
func (g *Gate) Commit() {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trains.commit(now)
}

// crowded says whether a class has as many waiting requests as it may have.
func (g *Gate) crowded(c Class) bool {
	l := &g.lanes[c]
	return l.waiting.len+l.entered >= g.cfg.MaxWaiting
}

// admits says whether a class may take a slot, and notes what is in the way.
func (g *Gate) admits(c Class) bool {
	switch {
	case g.total >= g.law.budget:
		g.seen.exhausted = true
		return false
	case g.lanes[c].inUse >= g.law.lanes[c].cap:
		g.seen.capped[c] = true
		return false
	}
	return true
}

func (g *Gate) take(c Class) {
	g.lanes[c].inUse++
	g.total++
}

// admit puts a ticket whose slot is taken among the admitted.
func (g *Gate) admit(t *ticket) {
	t.since = time.Now()
	g.live.push(t)
}

func (g *Gate) releaser(t *ticket) func() {
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.live.remove(t)
		g.seen.note(t.class, time.Since(t.since))
		g.give(t.class)
	}
}

// give returns a slot and hands on what has become free.
func (g *Gate) give(c Class) {
	g.lanes[c].inUse--
	g.total--
	g.handOn()
}

// handOn serves those who wait while there are slots.
func (g *Gate) handOn() {
	for {
		c, ok := g.next()
		if !ok {
			return
		}
		g.take(c)
		t := g.lanes[c].waiting.pop()
		g.admit(t)
		close(t.granted)
	}
}

// next picks the class whose waiting request gets the next slot: the first one
// below its whole share, else the one whose turn it is.
func (g *Gate) next() (best Class, found bool) {
	below := false
	for _, c := range wakeOrder() {
		l := &g.lanes[c]
		if below || l.waiting.len == 0 || !g.admits(c) {
			continue
		}
		below = l.inUse < int(g.cfg.shares[c]*float64(g.law.budget))
		if below || !found || g.start(c) < g.start(best) {
			best, found = c, true
		}
	}
	if !found {
		return best, false
	}
	if !below {
		g.turn = g.start(best)
	}
	g.lanes[best].turn = min(g.start(best)+1/g.cfg.shares[best], g.turn+maxLead/g.cfg.shares[best])
	return best, true
}

// start is when the next turn of a class starts: after its previous one, but a
// class that did not want its turns has none saved up.
func (g *Gate) start(c Class) float64 { return max(g.turn, g.lanes[c].turn) }
