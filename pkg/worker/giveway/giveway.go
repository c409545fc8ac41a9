package giveway

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/lifecycle"
)

// Config says how work gives way.
type Config struct {
	// Look is after how much work others are looked for.
	Look time.Duration
	// Piece is after how much work a rest is taken while others are at work: 0 is after
	// every call. A rest lasts Factor times as long as the work before it, Most at most.
	Piece  time.Duration
	Factor int
	Most   time.Duration
	// Memory is for how long others that were seen at work count as being so: one look
	// may miss them.
	Memory time.Duration
}

// Way is given to the same others by all of its rests, which tell each other of them.
type Way struct {
	cfg    Config
	others func(ctx context.Context) (bool, error)
	met    atomic.Pointer[time.Time] // when others were last at work; nil: never
}

// New returns a Way. others asks whether other sessions are at work at this moment.
func New(cfg Config, others func(ctx context.Context) (bool, error)) *Way {
	return &Way{cfg: cfg, others: others}
}

// Taken tells that others were at work lately, as far as somebody has looked.
func (w *Way) Taken() bool {
	met := w.met.Load()
	return met != nil && time.Since(*met) < w.cfg.Memory
}

// look looks for others. An error is left to the next piece of work, which meets it too.
func (w *Way) look(ctx context.Context) {
	if busy, err := w.others(ctx); err == nil && busy {
		now := time.Now()
		w.met.Store(&now)
	}
}

// Rest is what one worker owes to others. It is not safe for concurrent use.
type Rest struct {
	way      *Way
	worked   time.Duration // since the last rest, or since nobody was met
	unlooked time.Duration // worked since the last look
}

// Rest returns one that owes nothing.
func (w *Way) Rest() *Rest { return &Rest{way: w} }

// Worked accounts for a piece of work that took so long.
func (r *Rest) Worked(took time.Duration) {
	r.worked += took
	r.unlooked += took
}

// Take rests for the work so far, where there was enough of it and others are at work.
// It ends with ctx.
func (r *Rest) Take(ctx context.Context) {
	cfg, looked := r.way.cfg, r.unlooked >= r.way.cfg.Look
	if looked {
		r.unlooked = 0
		r.way.look(ctx)
	}
	switch {
	case !r.way.Taken():
		if looked {
			r.worked = 0
		}
	case r.worked >= cfg.Piece:
		worked := r.worked
		r.worked = 0
		lifecycle.Sleep(ctx, min(time.Duration(cfg.Factor)*worked, cfg.Most))
	}
}
