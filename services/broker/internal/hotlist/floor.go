package hotlist

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
)

// Run does the list's work in the background until ctx ends.
func (l *List) Run(ctx context.Context) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	var g errgroup.Group
	for _, loop := range []func(context.Context){l.pulses, l.floors, l.watches, l.sweeps} {
		g.Go(func() error { loop(ctx); return nil })
	}
	return g.Wait()
}

// every runs a piece of work at intervals, or when kicked, until ctx ends. The work
// returns a shorter pause, or 0.
func every(ctx context.Context, interval time.Duration, kicked <-chan struct{}, work func(context.Context) time.Duration) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-kicked:
		case <-timer.C:
		}
		pause := work(ctx)
		if pause <= 0 || pause > interval {
			pause = interval
		}
		timer.Reset(pause)
	}
}

func (l *List) floors(ctx context.Context) {
	reported := l.now()
	every(ctx, FloorTick, l.floor, func(ctx context.Context) time.Duration {
		next := l.lay(ctx)
		if now := l.now(); now-reported >= int64(reportEvery) {
			l.report(ctx)
			reported = now
		}
		return next
	})
}

// lay reads settings and walks the rings that are due, and returns when the next
// one is owed a walk.
func (l *List) lay(ctx context.Context) (next time.Duration) {
	err := l.refreshAll(ctx)
	now := l.now()
	var due []*ring
	for _, r := range l.rings() {
		if r.attended(now) && r.walk.due(l.cfg.Reseed) <= now {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *ring) int { return cmp.Compare(a.walk.due(l.cfg.Reseed), b.walk.due(l.cfg.Reseed)) })
	var g errgroup.Group
	g.SetLimit(walkers)
	errs := make([]error, len(due))
	for i, r := range due {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { errs[i] = r.reseed(ctx); return nil })
	}
	_ = g.Wait() // the errors are in errs
	l.complain(ctx, err, errs)
	return l.nextOwed()
}

// complain logs what failed, once a round.
func (l *List) complain(ctx context.Context, err error, errs []error) {
	failures := 0
	for _, e := range errs {
		if e != nil {
			failures++
			if err == nil {
				err = e
			}
		}
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	l.deps.Logger.WarnContext(ctx, "hot list could not read the database and will try again",
		slog.String(logging.KeyComponent, component), slog.Int(logging.KeyRings, failures), logging.Err(err))
}

// nextOwed is the pause until the first ring that owes a walk may have it.
func (l *List) nextOwed() time.Duration {
	now, next := l.now(), int64(math.MaxInt64)
	for _, r := range l.rings() {
		if r.attended(now) {
			next = min(next, r.walk.due(l.cfg.Reseed))
		}
	}
	if next == math.MaxInt64 {
		return 0
	}
	return max(time.Millisecond, time.Duration(next-now))
}

// watches looks after those who found nothing and wait.
func (l *List) watches(ctx context.Context) {
	seen := l.now()
	every(ctx, WatchTick, nil, func(ctx context.Context) time.Duration {
		now := l.now()
		// After a failure the next look goes back as far as the last good one.
		span := max(WatchSpan, time.Duration(now-seen)+WatchSpan-WatchTick)
		err := l.watch(ctx, min(span, watchSpanMax))
		switch {
		case err == nil:
			seen = now
		case ctx.Err() == nil:
			l.deps.Logger.WarnContext(ctx, "hot list could not watch for new work and will try again",
				slog.String(logging.KeyComponent, component), logging.Err(err))
		}
		return 0
	})
}

// Look does now what the watch does at intervals, for somebody who knows that it is
// worth it.
func (l *List) Look(ctx context.Context) error {
	if l == nil {
		return nil
	}
	return l.watch(ctx, WatchSpan)
}

// watch marks the lanes written lately of the rings that somebody waits for.
func (l *List) watch(ctx context.Context, span time.Duration) error {
	now := l.now()
	waiting := slices.DeleteFunc(l.rings(), func(r *ring) bool { return !r.awaited(now) })
	var problems []error
	for some := range slices.Chunk(waiting, watchBatch) {
		problems = append(problems, l.watchSome(ctx, some, span))
	}
	return errors.Join(problems...)
}

func (l *List) watchSome(ctx context.Context, rings []*ring, span time.Duration) error {
	asked := make([]store.HotlistRing, len(rings))
	for i, r := range rings {
		asked[i] = store.HotlistRing{Tenant: r.queue.tenant, Queue: r.queue.queue, Group: r.group}
	}
	rows, err := l.deps.Store.HotlistRecent(ctx, asked, span, watchLimit)
	if err != nil {
		return err
	}
	lists := make([][]store.PartitionRef, len(rings))
	for i := range rows {
		lists[rows[i].Ring] = append(lists[rows[i].Ring], rows[i].PartitionRef)
	}
	for i, refs := range lists {
		if rings[i].absorb(refs, row) < len(refs) {
			rings[i].walk.owe()
		}
	}
	return nil
}
