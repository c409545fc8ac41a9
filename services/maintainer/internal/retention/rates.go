package retention

import (
	"sync/atomic"

	"github.com/queenmq/queen/pkg/rates"

	"github.com/queenmq/queen/pkg/logging"
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
	s.Total(logging.KeySegmentsRate, m.segments.Load())
	s.Total(logging.KeyMessagesRate, m.messages.Load())
	s.Total(logging.KeyEvictedRate, m.evicted.Load())
	s.Total(logging.KeyBytesRate, m.bytes.Load())
	s.Total(logging.KeyTxnsRate, m.sidecar.Load())
	s.Total(logging.KeyPartitionsRate, m.partitions.Load())
	s.Total(logging.KeyStepTimeoutsRate, m.timeouts.Load())
	s.Total(logging.KeyStepFailuresRate, m.fails.Load())
}
