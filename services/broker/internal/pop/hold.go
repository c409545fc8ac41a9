package pop

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/queenmq/queen/services/broker/internal/wake"
)

const (
	// holdRefresh is how old a remembered minPopWaitTime may be.
	holdRefresh = 30 * time.Second
	// holdQueues bounds the queues whose setting is remembered.
	holdQueues = 16384
	// maxHold is the largest window a queue may ask for.
	maxHold = time.Minute
)

// holds remembers the minPopWaitTime of queues, and which topics were last
// served a full batch.
type holds struct {
	store   Store
	windows *lru.Cache[holdKey, *window]
	full    *lru.Cache[wake.Topic, struct{}]
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

func newHolds(s Store) (*holds, error) {
	windows, err := lru.New[holdKey, *window](holdQueues)
	if err != nil {
		return nil, fmt.Errorf("create window cache: %w", err)
	}
	full, err := lru.New[wake.Topic, struct{}](holdQueues)
	if err != nil {
		return nil, fmt.Errorf("create batch cache: %w", err)
	}
	return &holds{store: s, windows: windows, full: full}, nil
}

// lookAfterHold gives the messages of a queue with minPopWaitTime time to gather
// before they are claimed. The hold takes place before the claim, without slot
// or connection, since a claimed batch cannot grow. How much is pending is not
// known cheaply, so a topic whose last batch was full is taken to have a backlog
// and is not held.
func (p *poll) lookAfterHold(ctx context.Context, how mode) error {
	window := p.window(ctx)
	if window <= 0 {
		return p.look(ctx, how)
	}
	topic := p.topic()
	if !p.holds.full.Contains(topic) {
		pending, err := p.ask(ctx)
		if err != nil {
			return err
		}
		if !pending && how == probe {
			return nil
		}
		if pending && !p.gather(ctx, window) {
			return ctx.Err()
		}
	}
	err := p.look(ctx, claim)
	if p.count >= p.budget() {
		p.holds.full.Add(topic, struct{}{})
	} else {
		p.holds.full.Remove(topic)
	}
	return err
}

// ask runs the pending probe by itself.
func (p *poll) ask(ctx context.Context) (bool, error) {
	release, err := p.admit(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	return p.pending(ctx)
}

// gather waits for the window, at most until the deadline. It reports false when
// the request ended meanwhile.
func (p *poll) gather(ctx context.Context, window time.Duration) bool {
	t := time.NewTimer(min(window, time.Until(p.deadline)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.Hub.Done():
		return true // stopping: deliver what there is
	case <-ctx.Done():
		return false
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
	value, stale := w.value, time.Since(w.read) >= holdRefresh
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
