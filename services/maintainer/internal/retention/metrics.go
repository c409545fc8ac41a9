package retention

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

type metrics struct {
	sums sums

	cycles, turns                       metric.Int64Counter
	segments, messages, bytes           metric.Int64Counter
	sidecar, partitions, rows, repaired metric.Int64Counter
	timeouts, failures                  metric.Int64Counter
	phases, durations                   metric.Float64Histogram

	// What the gauges show.
	leading   atomic.Int64
	held      atomic.Int64 // unknown where this replica does not lead
	oldest    atomic.Int64 // nanoseconds, or unknown
	succeeded atomic.Int64 // nanoseconds since 1970
}

// unknown is a value that is not shown.
const unknown = -1

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{}
	m.leads(false)
	m.succeeded.Store(time.Now().UnixNano()) // from the start on, so that cycles that never succeed show
	var errs []error
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, help string
		opts       []metric.Int64CounterOption
	}{
		{&m.cycles, "cycles", "Retention cycles, by outcome.", nil},
		{&m.turns, "eviction_turns", "Evictions that were made between two cycles.", nil},
		{&m.segments, "segments", "Segments deleted, by phase.", nil},
		{&m.messages, "messages", "Messages deleted, by phase.", nil},
		{&m.bytes, "bytes", "Stored bytes of the segments deleted, by phase.", []metric.Int64CounterOption{metric.WithUnit("By")}},
		{&m.sidecar, "sidecar_rows", "Rows of the hash sidecar deleted.", nil},
		{&m.partitions, "partitions", "Empty partitions deleted.", nil},
		{&m.rows, "metrics_rows", "Rows of the metrics tables deleted.", nil},
		{&m.repaired, "repaired_watermarks", "Partitions whose watermark was wrong and has been repaired.", nil},
		{&m.timeouts, "step_timeouts", "Steps that did not get their lock in time or took too long, by phase.", nil},
		{&m.failures, "step_failures", "Steps that failed, by phase.", nil},
	} {
		var err error
		*c.to, err = meter.Int64Counter("queen.retention."+c.name, append(c.opts, metric.WithDescription(c.help))...)
		errs = append(errs, err)
	}
	var err error
	m.durations, err = meter.Float64Histogram("queen.retention.cycle.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the cycles that this replica led."), buckets())
	errs = append(errs, err)
	m.phases, err = meter.Float64Histogram("queen.retention.phase.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the phases of a cycle, by phase."), buckets())
	errs = append(errs, err, m.gauges(meter))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	m.zero(context.Background())
	return m, nil
}

// zero makes every series exist from the start: what appears with its first
// increment has no rate.
func (m *metrics) zero(ctx context.Context) {
	for _, outcome := range []string{outcomeSkipped, outcomeFailed, outcomeSwept, outcomeIdle} {
		m.cycles.Add(ctx, 0, metric.WithAttributes(attribute.String("outcome", outcome)))
	}
	m.turns.Add(ctx, 0)
	for _, p := range phases {
		m.count(ctx, Phase{Name: p.name})
	}
}

func buckets() metric.HistogramOption {
	return metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
}

func (m *metrics) gauges(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableGauge("queen.retention.leader",
		metric.WithDescription("1 while the last cycle was this replica's own, 0 while another had the lock or the cycle broke off."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(m.leading.Load())
			return nil
		}))
	_, err2 := meter.Int64ObservableGauge("queen.retention.held_lanes",
		metric.WithDescription("Partitions that are due and held by a slow group; none while this replica does not lead."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			if n := m.held.Load(); n != unknown {
				o.Observe(n)
			}
			return nil
		}))
	_, err3 := meter.Float64ObservableGauge("queen.retention.oldest_due", metric.WithUnit("s"),
		metric.WithDescription("For how long the oldest segment has been due, held ones included; none while this replica does not lead."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			if n := m.oldest.Load(); n != unknown {
				o.Observe(float64(n) / 1e9)
			}
			return nil
		}))
	_, err4 := meter.Float64ObservableGauge("queen.retention.since_success", metric.WithUnit("s"),
		metric.WithDescription("Time since this replica last made a cycle without an error, or skipped one because another replica was at it."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(time.Since(time.Unix(0, m.succeeded.Load())).Seconds())
			return nil
		}))
	return errors.Join(err1, err2, err3, err4)
}

// leads notes whether the lock was had, and kept to the end of the cycle. A replica
// that does not lead knows nothing of what is due.
func (m *metrics) leads(got bool) {
	if got {
		m.leading.Store(1)
		return
	}
	m.leading.Store(0)
	m.held.Store(unknown)
	m.oldest.Store(unknown)
}

func (m *metrics) plan(p store.Plan) {
	var oldest int64
	for _, q := range p.Queues {
		oldest = max(oldest, int64(q.OldestDue))
	}
	m.oldest.Store(oldest)
}

func (m *metrics) holds(lanes int64) { m.held.Store(lanes) }

func (m *metrics) cycle(ctx context.Context, r Report, outcome string) {
	m.cycles.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
	if outcome != outcomeFailed {
		m.succeeded.Store(time.Now().UnixNano())
	}
	if outcome != outcomeSkipped {
		m.durations.Record(ctx, r.Elapsed.Seconds())
	}
}

func (m *metrics) turn(ctx context.Context) { m.turns.Add(ctx, 1) }

func (m *metrics) phase(ctx context.Context, p Phase) {
	m.sums.add(p)
	m.phases.Record(ctx, p.Elapsed.Seconds(), metric.WithAttributes(attribute.String("phase", p.Name)))
	m.count(ctx, p)
}

func (m *metrics) count(ctx context.Context, p Phase) {
	label := metric.WithAttributes(attribute.String("phase", p.Name))
	m.timeouts.Add(ctx, p.TimedOut, label)
	m.failures.Add(ctx, p.Failed, label)
	switch p.Name {
	case PhaseRetention, PhaseEviction:
		m.segments.Add(ctx, p.Segments, label)
		m.messages.Add(ctx, p.Messages, label)
		m.bytes.Add(ctx, p.Bytes, label)
	case PhaseTxns:
		m.sidecar.Add(ctx, p.Rows)
	case PhaseCleanup:
		m.partitions.Add(ctx, p.Rows)
	case PhaseMetrics:
		m.rows.Add(ctx, p.Rows)
	case PhaseWalk:
		m.repaired.Add(ctx, p.Rows)
	}
}
