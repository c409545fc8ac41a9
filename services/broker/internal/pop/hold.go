package pop

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// holdQueues bounds the queues whose setting is remembered.
	holdQueues = 16384
	// maxHold is the largest window a queue may ask for.
	maxHold = time.Minute
	// holdLooks is how often a hold asks whether the batch is full, within bounds.
	holdLooks   = 10
	minHoldLook = 20 * time.Millisecond
	maxHoldLook = 250 * time.Millisecond
)

// holds remembers the minPopWaitTime of queues.
type holds struct {
	windows *lru.Cache[holdKey, *window]
}

type holdKey struct {
	tenant uuid.UUID
	queue  string
}

// window is the setting of one queue.
type window struct {
	mu    sync.Mutex
	read  time.Time
	value time.Duration
}

func newHolds() (*holds, error) {
	windows, err := lru.New[holdKey, *window](holdQueues)
	if err != nil {
		return nil, fmt.Errorf("create window cache: %w", err)
	}
	return &holds{windows: windows}, nil
}

// holds says whether pops of the queue are known to be held.
func (h *holds) holds(r *Request) bool {
	w, ok := h.windows.Peek(holdKey{r.Tenant, r.Queue})
	if !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.value > 0
}

// lookAfterHold gives the messages of a queue with minPopWaitTime time to gather
// before they are claimed: until the batch is full, the window has passed or the
// deadline has come. The hold takes place before the claim, without slot or
// connection, since a claimed batch cannot grow.
func (p *poll) lookAfterHold(ctx context.Context, how mode) error {
	if p.suspended() {
		return nil
	}
	window := p.window(ctx)
	if window <= 0 {
		return p.look(ctx, how)
	}
	if p.inRing() && p.ringEmpty() {
		return nil
	}
	var g gathering
	if err := p.estimate(ctx, &g); err != nil {
		return err
	}
	if g.there > 0 && g.there < p.budget() && !p.gather(ctx, window, &g) {
		return ctx.Err()
	}
	return p.look(ctx, how)
}

// gathering is what is known of a batch that gathers.
type gathering struct {
	there   int   // messages that one claim could take
	news    int64 // announced to the ring until then
	counted bool  // the ring counts
}

// estimate asks how much one claim could take now.
func (p *poll) estimate(ctx context.Context, g *gathering) error {
	release, err := p.admit(ctx)
	if err != nil {
		return err
	}
	defer release()
	q := &p.req.Query
	g.news, g.counted = p.HotList.News(p.req.Tenant, p.req.Queue, q.Group)
	g.there, err = p.Store.PopEstimate(ctx, p.req.Tenant, p.req.Queue, q.Group, q.Partitions, p.budget())
	return err
}

// full says whether the batch has gathered. While the ring has heard of too few
// messages the database is not asked. What cannot be learnt now is learnt at the
// next look, or by the claim.
func (p *poll) full(ctx context.Context, g *gathering) bool {
	n, counted := p.HotList.News(p.req.Tenant, p.req.Queue, p.req.Query.Group)
	if counted && g.counted && int64(g.there)+n-g.news < int64(p.budget()) {
		return false
	}
	return p.estimate(ctx, g) == nil && g.there >= p.budget()
}

// gather waits until the batch is full or the window has passed, at most until
// the deadline. It reports false when the request ended meanwhile.
func (p *poll) gather(ctx context.Context, window time.Duration, g *gathering) bool {
	end := time.NewTimer(min(window, time.Until(p.deadline)))
	defer end.Stop()
	look := time.NewTicker(min(max(window/holdLooks, minHoldLook), maxHoldLook))
	defer look.Stop()
	began := time.Now()
	defer func() { p.metrics.held(ctx, time.Since(began)) }()
	for {
		select {
		case <-end.C:
			return true
		case <-p.Hub.Done():
			return true // stopping: deliver what there is
		case <-ctx.Done():
			return false
		case <-look.C:
			if p.suspended() || p.full(ctx, g) {
				return true
			}
		}
	}
}

// window returns how long to hold this request. It is refreshed by one request
// at a time; the others go by the previous value, and so does everybody while
// the database does not answer.
func (p *poll) window(ctx context.Context) time.Duration {
	if p.req.Route != Wildcard || p.req.Query.Batch <= 1 {
		return 0
	}
	key := holdKey{p.req.Tenant, p.req.Queue}
	w, ok := p.holds.windows.Get(key)
	if !ok {
		w = &window{}
		if other, existed, _ := p.holds.windows.PeekOrAdd(key, w); existed {
			w = other
		}
	}
	w.mu.Lock()
	value, stale := w.value, time.Since(w.read) >= p.cfg.SettingsAge
	if stale {
		w.read = time.Now()
	}
	w.mu.Unlock()
	if !stale {
		return value
	}
	release, err := p.admit(ctx)
	if err != nil {
		return value
	}
	defer release()
	settings, found, err := p.Store.QueueSettings(ctx, p.req.Tenant, p.req.Queue)
	if err != nil {
		return value
	}
	value = 0
	if found {
		value = min(time.Duration(settings.MinPopWaitMillis)*time.Millisecond, maxHold)
	}
	w.mu.Lock()
	w.value = value
	w.mu.Unlock()
	return value
}
