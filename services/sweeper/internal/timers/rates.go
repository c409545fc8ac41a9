package timers

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/queenmq/queen/pkg/rates"

	"github.com/queenmq/queen/pkg/logging"
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
	r.Total(logging.KeyClaimedRate, m.claimed.Load())
	r.Total(logging.KeyFiredRate, m.fired.Load())
	r.Total(logging.KeyStaleRate, m.stale.Load())
	r.Total(logging.KeyFailedRate, m.failed.Load())
	r.Total(logging.KeyDeadLetteredRate, m.deadLettered.Load())
	r.Total(logging.KeyPrunedRate, s.upkeep.Pruned())
	r.State(slog.Int64(logging.KeyDue, s.metrics.dueNow.Load()), slog.Duration(logging.KeyLate, time.Duration(s.metrics.oldest.Load())),
		slog.Int64(logging.KeyPressure, s.metrics.pressure.Load()))
}
