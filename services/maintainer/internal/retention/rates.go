package retention

import (
	"sync/atomic"

	"github.com/queenmq/queen/pkg/rates"
)

// sums are what this replica has done since it began.
type sums struct {
	segments, messages, bytes, evicted   atomic.Int64
	sidecar, partitions, timeouts, fails atomic.Int64
}

func (s *sums) add(p Phase) {
	s.timeouts.Add(p.TimedOut)
	s.fails.Add(p.Failed)
	switch p.Name {
	case PhaseRetention:
		s.segments.Add(p.Segments)
		s.messages.Add(p.Messages)
		s.bytes.Add(p.Bytes)
	case PhaseEviction:
		s.segments.Add(p.Segments)
		s.evicted.Add(p.Messages)
		s.bytes.Add(p.Bytes)
	case PhaseTxns:
		s.sidecar.Add(p.Rows)
	case PhaseCleanup:
		s.partitions.Add(p.Rows)
	}
}

// Rates tells what was deleted.
func (r *Retention) Rates(s *rates.Sample) {
	m := &r.metrics.sums
	s.Total("segments_s", m.segments.Load())
	s.Total("messages_s", m.messages.Load())
	s.Total("evicted_s", m.evicted.Load())
	s.Total("bytes_s", m.bytes.Load())
	s.Total("txns_s", m.sidecar.Load())
	s.Total("partitions_s", m.partitions.Load())
	s.Total("step_timeouts_s", m.timeouts.Load())
	s.Total("step_failures_s", m.fails.Load())
}
