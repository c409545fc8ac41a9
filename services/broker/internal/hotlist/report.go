package hotlist

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/queenmq/queen/pkg/logging"
)

const component = "hotlist"

// tally is what the walks did since the last report.
type tally struct {
	mu                     sync.Mutex
	passes, failures, rows int
}

func (t *tally) pass(rows int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passes++
	t.rows += rows
	if err != nil {
		t.failures++
	}
}

// take returns the numbers and begins anew.
func (t *tally) take() (passes, failures, rows int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	passes, failures, rows = t.passes, t.failures, t.rows
	t.passes, t.failures, t.rows = 0, 0, 0
	return passes, failures, rows
}

// report logs what the walks did, and the fullest rings.
func (l *List) report(ctx context.Context) {
	passes, failures, rows := l.tally.take()
	if passes == 0 {
		return
	}
	c := l.census()
	l.deps.Logger.InfoContext(ctx, "reseed floor", slog.String(logging.KeyComponent, component),
		slog.Int(logging.KeyPasses, passes), slog.Int(logging.KeyFailures, failures), slog.Int(logging.KeyRows, rows),
		slog.Int(logging.KeyRings, c.rings), slog.Int(logging.KeyLanes, c.lanes),
		slog.Int(logging.KeyReady, c.slots[ready]), slog.Int(logging.KeyWheel, c.slots[wheel]), slog.Int(logging.KeyInflight, c.slots[inflight]))
	if !l.deps.Logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	rings := l.rings()
	slices.SortFunc(rings, func(a, b *ring) int { return cmp.Compare(b.ready.Load(), a.ready.Load()) })
	for _, r := range rings[:min(len(rings), l.cfg.TopRings)] {
		n := r.counts()
		l.deps.Logger.DebugContext(ctx, "ring", slog.String(logging.KeyComponent, component),
			slog.String(logging.KeyTenant, r.queue.tenant.String()), slog.String(logging.KeyQueue, r.queue.queue),
			slog.String(logging.KeyGroup, r.group), slog.Int(logging.KeyReady, n[ready]), slog.Int(logging.KeyWheel, n[wheel]),
			slog.Int(logging.KeyInflight, n[inflight]), slog.Duration(logging.KeyOldest, r.age(l.now())))
	}
}

// census is the size of everything.
type census struct {
	queues, rings, lanes int
	slots                [states]int
}

func (l *List) census() (c census) {
	for _, q := range l.all() {
		c.queues++
		q.mu.RLock()
		c.lanes += q.table.used
		q.mu.RUnlock()
		for _, r := range q.appendRings(nil) {
			c.rings++
			n := r.counts()
			for st := ready; st < states; st++ {
				c.slots[st] += n[st]
			}
		}
	}
	return c
}
