package timers

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/rates"
)

// sums are what this process has done since it began.
type sums struct{ claimed, fired, stale, failed, deadLettered atomic.Int64 }

func (s *sums) add(d Report) {
	s.claimed.Add(int64(d.Claimed))
	s.fired.Add(int64(d.Fired))
	s.stale.Add(int64(d.Stale))
	s.failed.Add(int64(d.Failed))
	s.deadLettered.Add(int64(d.DeadLettered))
}

// Rates tells what became of timers and keys, and what the last probe has seen.
func (s *Sweeper) Rates(r *rates.Sample) {
	m := &s.sums
	r.Total("claimed_s", m.claimed.Load())
	r.Total("fired_s", m.fired.Load())
	r.Total("stale_s", m.stale.Load())
	r.Total("failed_s", m.failed.Load())
	r.Total("dead_lettered_s", m.deadLettered.Load())
	r.Total("pruned_s", s.upkeep.Pruned())
	r.State(slog.Int64("due", s.metrics.dueNow.Load()), slog.Duration("late", time.Duration(s.metrics.oldest.Load())),
		slog.Int64("pressure", s.metrics.pressure.Load()))
}
