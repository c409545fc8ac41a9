package stats

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

// The lanes, as metrics and logs name them.
const (
	refreshLane  = "refresh"
	retainedLane = "retained_bytes"
)

const (
	laneKey    = attribute.Key("lane")
	outcomeKey = attribute.Key("outcome")

	outcomeFailed = "failed" // beside the states of a turn
)

type metrics struct {
	turns    metric.Int64Counter
	duration metric.Float64Histogram
	// When a lane was last done, by whichever replica, in nanoseconds since 1970.
	refreshed, measured atomic.Int64
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{}
	now := time.Now().UnixNano() // an age from the start on, so that a lane that never works shows
	m.refreshed.Store(now)
	m.measured.Store(now)
	var err1, err2, err3 error
	m.turns, err1 = meter.Int64Counter("queen.stats.turns",
		metric.WithDescription("Turns of the stats reconciler by outcome: done, busy (another replica holds the lock), early (another replica did it), failed."))
	m.duration, err2 = meter.Float64Histogram("queen.stats.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of what was done."),
		metric.WithExplicitBucketBoundaries(0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 20, 60, 300))
	_, err3 = meter.Float64ObservableGauge("queen.stats.age", metric.WithUnit("s"),
		metric.WithDescription("Time since the lane was last done, by any replica as far as this one knows."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(age(&m.refreshed), metric.WithAttributes(laneKey.String(refreshLane)))
			o.Observe(age(&m.measured), metric.WithAttributes(laneKey.String(retainedLane)))
			return nil
		}))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	m.zero(context.Background())
	return m, nil
}

// zero makes every series exist from the start: what appears with its first
// increment has no rate.
func (m *metrics) zero(ctx context.Context) {
	for _, lane := range []string{refreshLane, retainedLane} {
		for _, outcome := range []string{string(store.StatsDone), string(store.StatsBusy), string(store.StatsEarly), outcomeFailed} {
			m.turns.Add(ctx, 0, metric.WithAttributes(laneKey.String(lane), outcomeKey.String(outcome)))
		}
	}
}

func age(done *atomic.Int64) float64 { return time.Since(time.Unix(0, done.Load())).Seconds() }

// took notes a turn of a lane.
func (m *metrics) took(ctx context.Context, lane string, turn store.StatsTurn, elapsed time.Duration, err error) {
	outcome := string(turn.State)
	if err != nil {
		outcome = outcomeFailed
	}
	m.turns.Add(ctx, 1, metric.WithAttributes(laneKey.String(lane), outcomeKey.String(outcome)))
	switch outcome {
	case string(store.StatsDone):
		m.duration.Record(ctx, elapsed.Seconds(), metric.WithAttributes(laneKey.String(lane)))
		m.done(lane, time.Now())
	case string(store.StatsEarly):
		m.done(lane, time.Now().Add(-turn.Since))
	}
}

// done notes when a lane was done; what another replica did may be older than what
// this one knows.
func (m *metrics) done(lane string, at time.Time) {
	last := &m.refreshed
	if lane == retainedLane {
		last = &m.measured
	}
	last.Store(max(last.Load(), at.UnixNano()))
}
