package pgdb

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// resetPause is the least time between two resets of the pool. While a server only
	// reads, every write fails, and a reset for each was measured to open more than a
	// hundred connections a second. One a second still finds a new primary within a
	// second after the address leads there.
	resetPause = time.Second

	// Bounds of the pause between two connections that are asked of a server which has
	// none left. Each question costs it a process; without pauses one broker under load
	// was measured to ask five hundred times a second.
	firstRefusalPause = 20 * time.Millisecond
	lastRefusalPause  = time.Second

	// sharePause is the time between two looks for an idle connection while the server
	// refuses more: the pool itself knows no waiting below its size.
	sharePause = 10 * time.Millisecond
)

// resets paces the resets of a pool. It is safe for concurrent use.
type resets struct {
	mu   sync.Mutex
	next time.Time
}

// due tells whether the pool is to be reset now, and takes that for done.
func (r *resets) due(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.next) {
		return false
	}
	r.next = now.Add(resetPause)
	return true
}

// refusals keeps a pool from asking a server that is out of connections again and
// again: once it has refused one, a single connection is tried at a time, after pauses
// that grow and vary, until one succeeds. Whoever wants one in between has the refusal
// for an answer. It is safe for concurrent use.
type refusals struct {
	mu    sync.Mutex
	last  error // nil while the server takes connections
	pause time.Duration
	next  time.Time // when the next connection may be tried
}

// admit answers why no connection may be tried now; nil lets the caller try one.
func (r *refusals) admit(now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return nil
	}
	if now.Before(r.next) {
		return fmt.Errorf("the server has just refused a connection: %w", r.last)
	}
	r.wait(now, min(2*r.pause, lastRefusalPause))
	return nil
}

// wait begins a pause, of which the upper half is random: processes that were refused
// together do not come back together.
func (r *refusals) wait(now time.Time, pause time.Duration) {
	r.pause = pause
	r.next = now.Add(pause/2 + rand.N(pause/2))
}

// note looks at an attempt that failed. Those that were made together begin one pause.
func (r *refusals) note(err error, now time.Time) {
	if sqlState(err) != codeTooMany {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = err
		r.wait(now, firstRefusalPause)
	}
}

// over ends the pauses: the server has taken a connection.
func (r *refusals) over() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = nil
}

// beforeConnect and afterConnect are the hooks of the pool.
func (r *refusals) beforeConnect(context.Context, *pgx.ConnConfig) error { return r.admit(time.Now()) }

func (r *refusals) afterConnect(prepare func(context.Context, *pgx.Conn) error) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, conn *pgx.Conn) error {
		r.over()
		return prepare(ctx, conn)
	}
}
