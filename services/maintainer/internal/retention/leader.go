package retention

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/worker/giveway"
)

// leader is what a replica keeps from cycle to cycle: its connection, and what it
// remembers of the lanes. All of it may be lost.
type leader struct {
	*Retention
	session session // nil: not connected

	retention, txns, eviction lanePhase
	cleanup                   pace
	held                      map[uuid.UUID]*heldLanes // by queue

	// single says that no cycle follows: what yields to an eviction would be left undone.
	single  bool
	evictAt time.Time // when the next eviction falls due; zero when none is known
	turned  time.Time // the last turn of the eviction alone
	// The work of these went beyond one cycle and goes on without asking the clock;
	// the cleanup from where it stopped.
	cleaning, walking bool
	cleaned           store.LaneKey

	purgeErrors, releaseErrors logging.Quiet
}

func (r *Retention) newLeader() *leader {
	l := &leader{
		Retention: r, held: map[uuid.UUID]*heldLanes{}, cleanup: newPace(r.cfg.BatchSize),
		purgeErrors: logging.Quiet{Every: PurgeQuiet}, releaseErrors: logging.Quiet{Every: ErrorQuiet},
	}
	l.retention, l.txns, l.eviction = l.retentionPhase(), l.txnsPhase(), l.evictionPhase()
	return l
}

func (l *leader) connect(ctx context.Context) error {
	if l.session != nil {
		return nil
	}
	s, err := l.open(ctx)
	if err != nil {
		return fmt.Errorf("open the session: %w", err)
	}
	l.session = s
	return nil
}

func (l *leader) close(ctx context.Context) {
	if l.session == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	l.session.Close(ctx)
	l.session = nil
}

// lead does some work under the lock, and gives the lock back however it ends.
// Every statement of the work runs on the connection that holds it, so that a
// leader without the lock can do nothing more.
func (l *leader) lead(ctx context.Context, work func(context.Context) error) error {
	got, err := l.tryLock(ctx)
	l.metrics.leads(got)
	if err != nil {
		return err
	}
	if !got {
		l.evictAt = time.Time{} // whoever leads sees to it
		return ErrNotLeader
	}
	defer l.release(ctx)
	if err := work(ctx); err != nil {
		l.metrics.leads(false)
		return err
	}
	return nil
}

// lost tells that the session is gone, and the lock with it.
func (l *leader) lost() bool { return l.session == nil || l.session.Closed() }

func (l *leader) setLockWait(ctx context.Context, wait time.Duration) error {
	return l.session.SetLockWait(ctx, wait)
}

// rest has a phase give way to others.
func (l *leader) rest() *giveway.Rest {
	cfg := giveway.Config{Look: RestAfter, Piece: RestAfter, Factor: RestFactor, Most: RestMost, Memory: RestMemory}
	return giveway.New(cfg, func(ctx context.Context) (bool, error) { return l.session.OthersAtWork(ctx) }).Rest()
}

// tryLock tries the lock on the connection of the last cycle, and on a new one where
// that has been lost meanwhile.
func (l *leader) tryLock(ctx context.Context) (got bool, err error) {
	for used := l.session != nil; ; used = false {
		if err := l.connect(ctx); err != nil {
			return false, err
		}
		if got, err = l.session.TryLock(ctx); err == nil {
			return got, nil
		}
		l.close(ctx)
		if !used || ctx.Err() != nil {
			return false, fmt.Errorf("try the lock: %w", err)
		}
	}
}

// release gives the lock back. Where that fails the connection is closed, and the
// lock goes with it.
func (l *leader) release(ctx context.Context) {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	lost := l.lost()
	err := l.session.Unlock(within)
	if err == nil {
		return
	}
	l.close(ctx)
	if ctx.Err() != nil { // a statement was cut off, and the session with it
		return
	}
	left, ok := l.releaseErrors.Speak()
	switch attrs := []any{slog.Int(logging.KeyNotLogged, left), logging.Err(err)}; {
	case !ok:
	case lost:
		l.log.WarnContext(ctx, "retention lock was not released: its connection was lost in the cycle, and the lock with it", attrs...)
	default:
		l.log.WarnContext(ctx, "retention lock was not released: the statement failed; its connection is closed, and the lock goes with it", attrs...)
	}
}

// turnAt is when the eviction should get a turn of its own.
func (l *leader) turnAt() (time.Time, bool) {
	if l.evictAt.IsZero() {
		return time.Time{}, false
	}
	at := l.evictAt
	if soonest := l.turned.Add(EvictPause); at.Before(soonest) {
		at = soonest
	}
	return at, true
}

// lookAhead asks when the next eviction falls due.
func (l *leader) lookAhead(ctx context.Context) error {
	wait, err := l.session.NextEviction(ctx)
	if err != nil {
		return fmt.Errorf("look for the next eviction: %w", err)
	}
	l.evictAt = time.Time{}
	if wait != nil && !l.single {
		l.evictAt = time.Now().Add(*wait + evictionSlack)
	}
	return nil
}

// heldOf returns the held ranges of a queue.
func (l *leader) heldOf(q store.QueuePlan) *heldLanes {
	h, ok := l.held[q.Queue]
	if !ok {
		h = &heldLanes{}
		l.held[q.Queue] = h
	}
	return h
}

// forget drops what is remembered of queues that have nothing due any more.
func (l *leader) forget(plan store.Plan) {
	due := make(map[uuid.UUID]struct{}, len(plan.Queues))
	for _, q := range plan.Queues {
		if q.LiveDue {
			due[q.Queue] = struct{}{}
		}
	}
	maps.DeleteFunc(l.held, func(id uuid.UUID, _ *heldLanes) bool {
		_, ok := due[id]
		return !ok
	})
}

func (l *leader) heldLanes() (n int64) {
	for _, h := range l.held {
		n += h.lanes()
	}
	return n
}
