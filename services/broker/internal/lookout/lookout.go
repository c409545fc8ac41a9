package lookout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

const (
	// ProbeEvery is how often the database is asked for the next timer, and how far
	// ahead an answer is good for. A timer that another broker has scheduled may be
	// fired before any probe has seen it. Then it was at most that late, and the
	// ordinary look finds it within a second.
	ProbeEvery = 250 * time.Millisecond
	// RetryAfter is the pause after a probe or a look that failed.
	RetryAfter = time.Second
	// Spacing is the pause between two looks; see the package comment for what they cost.
	Spacing = 50 * time.Millisecond
	// Share bounds what the looks take: one in so many parts of the time. The processor is
	// busy for a part of that only.
	Share = 10
	// Reserve is what the looks may take beyond their share after a pause, so that a slow
	// one now and then does not keep the next ones waiting.
	Reserve = 500 * time.Millisecond
	// Stay is how long after its time a timer is expected: a second for the sleep of a
	// sweeper that nobody has woken, and one for the fire. Meanwhile it may be out of
	// sight, as a sweeper has claimed it. One that stays due is seen by the next probe.
	Stay = 2 * time.Second
	// patience bounds one probe, and one look.
	patience = 5 * time.Second

	never = time.Duration(1<<63 - 1)
)

// Store is the part of the store that is asked for timers.
type Store interface {
	TimersDue(ctx context.Context, shards []int16, limit int) (store.TimersDue, error)
}

// Deps are what a Lookout works with.
type Deps struct {
	Store  Store
	Meter  metric.Meter
	Logger *slog.Logger
}

// Lookout is safe for concurrent use. Its exported fields are set before Run.
type Lookout struct {
	// Linked says whether a sweeper tells this broker of what it fires; nil: none does.
	Linked func() bool
	// Waiting is how many pops wait.
	Waiting func() int
	// Looks find what was written lately, and wake the pops that it concerns.
	Looks []func(ctx context.Context) error

	deps    Deps
	metrics *metrics
	start   time.Time
	kicked  chan struct{}
	until   atomic.Int64 // timers are expected until then, since start

	// Only Run uses these.
	budget  *rate.Limiter // of the looks, in microseconds
	probing time.Duration // when the next probe is due, since start
	looking time.Duration // likewise the next look
}

// New builds a Lookout. It fails only when an instrument cannot be created.
func New(deps Deps) (*Lookout, error) {
	l := &Lookout{
		deps: deps, start: time.Now(), kicked: make(chan struct{}, 1),
		budget: rate.NewLimiter(rate.Limit(time.Second/time.Microsecond/Share), int(Reserve/time.Microsecond)),
	}
	var err error
	if l.metrics, err = newMetrics(deps.Meter); err != nil {
		return nil, fmt.Errorf("create lookout metrics: %w", err)
	}
	return l, nil
}

func (l *Lookout) now() time.Duration { return time.Since(l.start) }

// Due notes that a timer was scheduled which is due in some time. It takes no lock
// and allocates nothing.
func (l *Lookout) Due(in time.Duration) {
	if in <= ProbeEvery { // what is later is found by a probe in time
		l.expect(in)
	}
}

// expect stretches the time for which timers are expected.
func (l *Lookout) expect(in time.Duration) {
	now := int64(l.now())
	until := now + int64(max(in, 0)+Stay)
	for {
		was := l.until.Load()
		if was >= until {
			return
		}
		if l.until.CompareAndSwap(was, until) {
			if was <= now {
				l.Kick()
			}
			return
		}
	}
}

// Kick tells that a pop has been parked while none was.
func (l *Lookout) Kick() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

// Run probes and looks until ctx ends.
func (l *Lookout) Run(ctx context.Context) error {
	t := time.NewTimer(never)
	defer t.Stop()
	for {
		t.Reset(l.turn(ctx))
		select {
		case <-ctx.Done():
			return nil
		case <-l.kicked:
		case <-t.C:
		}
	}
}

// turn does what is due now, and returns when to come back.
func (l *Lookout) turn(ctx context.Context) time.Duration {
	switch {
	case l.Waiting() == 0:
		return never // the first pop that is parked kicks
	case l.Linked != nil && l.Linked():
		return ProbeEvery
	}
	if l.now() >= l.probing {
		l.probing = l.now() + l.probe(ctx)
	}
	next := l.probing
	if l.now() < time.Duration(l.until.Load()) {
		if l.now() >= l.looking {
			l.looking = l.look(ctx)
		}
		next = min(next, l.looking)
	}
	return max(next-l.now(), time.Millisecond)
}

// probe asks whether a timer is due soon, and returns the pause until the next one.
func (l *Lookout) probe(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	due, err := l.deps.Store.TimersDue(ctx, store.Shards(0), 1)
	l.metrics.probed(ctx, err)
	if err != nil {
		// The ordinary looks complain of a database that does not answer.
		l.deps.Logger.DebugContext(ctx, "timers to come could not be read", logging.Err(err))
		return RetryAfter
	}
	if due.Next != nil && *due.Next <= ProbeEvery {
		l.expect(*due.Next)
	}
	return ProbeEvery
}

// look looks everywhere, and returns when to do so again.
func (l *Lookout) look(ctx context.Context) (next time.Duration) {
	began := l.now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var errs []error
	for _, look := range l.Looks {
		errs = append(errs, look(ctx))
	}
	err := errors.Join(errs...)
	l.metrics.looked(ctx, err)
	if err != nil {
		l.deps.Logger.DebugContext(ctx, "messages of timers could not be looked for", logging.Err(err))
		return l.now() + RetryAfter
	}
	now := time.Now()
	cost := min(l.now()-began, Reserve)
	return max(began+Spacing, l.now()+l.budget.ReserveN(now, int(cost/time.Microsecond)).DelayFrom(now))
}
