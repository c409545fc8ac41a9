package quota

import (
	"sync"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/store"
)

// tenant is what this broker knows and has counted of one tenant.
type tenant struct {
	id uuid.UUID

	mu            sync.Mutex
	quota         store.KVQuota
	use           [resources]use
	reads, writes *rate.Limiter
}

// The resources that a tenant occupies.
const (
	rows = iota
	bytes
	timers
	resources
)

func resourceNames() [resources]string { return [resources]string{"rows", "bytes", "timers"} }

// use is how much of one resource a tenant occupies.
type use struct {
	limit    int64 // noLimit for none
	measured int64
	delta    int64 // let pass since the measurement
	blocked  bool
}

const noLimit = -1

// adopt takes over what was read. What was let pass is forgotten when there is
// another measurement.
func (t *tenant) adopt(q store.KVQuota, cfg *Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	newer := q.ComputedAtMs != t.quota.ComputedAtMs
	for r, seen := range [resources]struct {
		limit    *int64
		measured int64
	}{{q.MaxRows, q.KVRows}, {q.MaxBytes, q.KVBytes}, {q.MaxTimers, q.TimerRows}} {
		u := &t.use[r]
		u.measured, u.limit = seen.measured, noLimit
		if seen.limit != nil {
			u.limit = max(*seen.limit, 0)
		}
		if newer {
			u.delta = 0
		}
		u.release(cfg.ReleasePercent)
	}
	t.quota = q
	t.reads = adjust(t.reads, q.MaxReadsPerSec, cfg.ReadRate, cfg.ReadBurst)
	t.writes = adjust(t.writes, q.MaxWritesPerSec, cfg.WriteRate, cfg.WriteBurst)
}

// room tells whether that much more may come, and blocks a resource that has reached
// its limit: it opens again only well below.
func (u *use) room(more int64, releasePercent int) bool {
	if u.limit == noLimit || more == 0 {
		return true
	}
	u.release(releasePercent)
	used := u.measured + u.delta
	if used >= u.limit {
		u.blocked = true
	}
	return !u.blocked && more <= u.limit-used
}

// release ends a block below the given share of the limit.
func (u *use) release(percent int) {
	if u.blocked && (u.limit == noLimit || u.share() < float64(percent)/100) {
		u.blocked = false
	}
}

// share is how much of the limit is used.
func (u *use) share() float64 {
	switch u.limit {
	case noLimit:
		return 0
	case 0:
		return 1
	}
	return float64(u.measured+u.delta) / float64(u.limit)
}

// isHot tells whether a tenant is close to one of its limits.
func (t *tenant) isHot(percent int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.use {
		if t.use[r].limit != noLimit && t.use[r].share() >= float64(percent)/100 {
			return true
		}
	}
	return false
}

// occupy charges what a request may create, or names the resource that has no room.
func (t *tenant) occupy(more [resources]int64, releasePercent int) (c *Charge, full int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range more {
		if !t.use[r].room(more[r], releasePercent) {
			return nil, r, false
		}
	}
	if more == ([resources]int64{}) {
		return nil, 0, true
	}
	for r := range more {
		t.use[r].delta += more[r]
	}
	return &Charge{tenant: t, measuredAt: t.quota.ComputedAtMs, more: more}, 0, true
}

// Charge is what a request was charged for what it may create.
type Charge struct {
	tenant     *tenant
	measuredAt int64
	more       [resources]int64
	once       sync.Once
}

// Refund gives back what was charged: for a call that did not reach the database, or
// that it refused. One whose outcome is unknown keeps its charge. A charge that a
// newer measurement has made obsolete is not given back. Tokens never are.
func (c *Charge) Refund() {
	if c == nil {
		return
	}
	c.once.Do(func() {
		t := c.tenant
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.quota.ComputedAtMs != c.measuredAt {
			return
		}
		for r := range c.more {
			t.use[r].delta -= c.more[r]
		}
	})
}

// limits are the rate limiters of a tenant.
func (t *tenant) limits() (reads, writes *rate.Limiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reads, t.writes
}
