package timers

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/lateness"
	"github.com/queenmq/queen/services/sweeper/internal/phases"
)

const (
	resultKey = attribute.Key("result")
	classKey  = attribute.Key("class")
	bandKey   = attribute.Key("band")

	resultFired     = "fired"
	resultStale     = "stale"
	resultDuplicate = "duplicate" // kept for readers: the fire has no such answer
)

type metrics struct {
	cycles, probes, emptyClaims, sleeps metric.Int64Counter
	claims, fires, failures             metric.Int64Counter
	deadLettered, isolations, poisoned  metric.Int64Counter
	lags, durations, turns              metric.Float64Histogram
	tenants                             *lateness.Recorder
	phases                              *phases.Recorder

	// What the gauges show.
	dueNow, oldest atomic.Int64 // timers; nanoseconds
	pressure       atomic.Int64
	dueCapped, off atomic.Bool
}

func newMetrics(meter metric.Meter) (_ *metrics, err error) {
	m := &metrics{}
	if m.phases, err = phases.New(meter); err != nil {
		return nil, err
	}
	if m.tenants, err = lateness.New(meter); err != nil {
		return nil, err
	}
	var errs []error
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, help string
	}{
		{&m.cycles, "queen.sweeper.cycles", "Cycles of the sweeper."},
		{&m.probes, "queen.sweeper.probes", "Probes for timers that are due."},
		{&m.emptyClaims, "queen.sweeper.empty_claims", "Cycles in which timers were due and none could be claimed."},
		{&m.sleeps, "queen.sweeper.sleeps", "Pauses by what they waited for: work, empty_claim, next (timer), idle."},
		{&m.claims, "queen.timers.claimed", "Timers claimed."},
		{&m.fires, "queen.timers.fired", "Timers by the answer of their fire: fired, stale, duplicate."},
		{&m.failures, "queen.timers.fire_failures", "Timers whose fire failed: transient, permanent, configuration, lost (no answer, and not fired)."},
		{&m.deadLettered, "queen.timers.dlq", "Timers moved among the dead letters."},
		{&m.poisoned, "queen.timers.poisoned", "Timers that used up their attempts: each becomes a dead letter, or is tried once more where that fails."},
		{&m.isolations, "queen.timers.isolations", "Fires that failed for good and were repeated piece by piece."},
	} {
		var err error
		*c.to, err = meter.Int64Counter(c.name, metric.WithDescription(c.help))
		errs = append(errs, err)
	}
	var err1, err2, err3 error
	m.lags, err1 = meter.Float64Histogram("queen.timers.lateness", metric.WithUnit("s"),
		metric.WithDescription("How late timers were fired, from the instant they were scheduled for to the commit."),
		metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2.5,
			5, 10, 20, 30, 60, 120, 300, 900, 3600, 14400))
	m.durations, err2 = meter.Float64Histogram("queen.timers.fire.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the fire calls."),
		metric.WithExplicitBucketBoundaries(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
	m.turns, err3 = meter.Float64Histogram("queen.sweeper.cycle.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the cycles: a probe, and the drain of what was due."),
		metric.WithExplicitBucketBoundaries(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30))
	errs = append(errs, err1, err2, err3, m.gauges(meter))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	m.zero(context.Background())
	return m, nil
}

// zero makes every series exist from the start: what appears with its first
// increment has no rate.
func (m *metrics) zero(ctx context.Context) {
	for _, c := range []metric.Int64Counter{m.cycles, m.probes, m.emptyClaims, m.claims, m.deadLettered, m.poisoned, m.isolations} {
		c.Add(ctx, 0)
	}
	for _, result := range []string{resultFired, resultStale, resultDuplicate} {
		m.fired(ctx, result, 0)
	}
	for _, class := range []string{classTransient, classPermanent, classConfiguration, classLost} {
		m.failed(ctx, class, 0)
	}
	for _, band := range []string{bandWork, bandMissed, bandNext, bandIdle} {
		m.sleeps.Add(ctx, 0, metric.WithAttributes(bandKey.String(band)))
	}
}

func (m *metrics) gauges(meter metric.Meter) error {
	gauge := func(name, help string, value func() int64) error {
		_, err := meter.Int64ObservableGauge(name, metric.WithDescription(help),
			metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
				o.Observe(value())
				return nil
			}))
		return err
	}
	_, err := meter.Float64ObservableGauge("queen.timers.oldest_late", metric.WithUnit("s"),
		metric.WithDescription("How late the first of the timers that were due at the last probe was."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(time.Duration(m.oldest.Load()).Seconds())
			return nil
		}))
	return errors.Join(err,
		gauge("queen.timers.due", "Timers that were due at the last probe, up to the cap of its count.", m.dueNow.Load),
		gauge("queen.timers.due_capped", "1 where more timers may have been due than were counted.", func() int64 { return bit(m.dueCapped.Load()) }),
		gauge("queen.sweeper.pressure", "How far the sweeper gives way to a database in trouble: 0 not at all, 8 at most.", m.pressure.Load),
		gauge("queen.timers.fire_enabled", "0 while an operator has switched the fire off.", func() int64 { return bit(!m.off.Load()) }))
}

func bit(on bool) int64 {
	if on {
		return 1
	}
	return 0
}

func (m *metrics) probed(ctx context.Context, due store.TimersDue) {
	m.probes.Add(ctx, 1)
	m.dueNow.Store(int64(due.Due))
	m.dueCapped.Store(due.Capped)
	m.oldest.Store(int64(due.Late))
}

func (m *metrics) claimed(ctx context.Context, n int) { m.claims.Add(ctx, int64(n)) }

func (m *metrics) fired(ctx context.Context, result string, n int) {
	m.fires.Add(ctx, int64(n), metric.WithAttributes(resultKey.String(result)))
}

func (m *metrics) failed(ctx context.Context, class string, n int) {
	m.failures.Add(ctx, int64(n), metric.WithAttributes(classKey.String(class)))
}

func (m *metrics) lag(ctx context.Context, tenant uuid.UUID, late time.Duration) {
	m.lags.Record(ctx, late.Seconds())
	m.tenants.Fired(ctx, tenant, late)
}

func (m *metrics) took(ctx context.Context, elapsed time.Duration) {
	m.durations.Record(ctx, elapsed.Seconds())
}

// turned notes how long a cycle took.
func (m *metrics) turned(ctx context.Context, elapsed time.Duration) {
	m.turns.Record(ctx, elapsed.Seconds())
	m.phases.Took(phases.Fire, elapsed)
}

// slept notes the end of a cycle.
func (m *metrics) slept(ctx context.Context, r rest) {
	m.cycles.Add(ctx, 1)
	m.sleeps.Add(ctx, 1, metric.WithAttributes(bandKey.String(r.band())))
	m.pressure.Store(int64(r.pressure))
	if r.missed {
		m.emptyClaims.Add(ctx, 1)
		m.phases.Locked(ctx, phases.Fire)
	}
	if r.off {
		m.phases.Skipped(ctx, phases.Fire)
	}
}
