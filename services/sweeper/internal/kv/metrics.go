package kv

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
)

const (
	phaseKey   = attribute.Key("phase")
	outcomeKey = attribute.Key("outcome")
	tenantKey  = attribute.Key("tenant")
	tableKey   = attribute.Key("table")

	outcomeDone   = "done"
	outcomeFailed = "failed"
	outcomeShed   = "shed"
)

type metrics struct {
	runs     metric.Int64Counter
	pruned   metric.Int64Counter
	duration metric.Float64Histogram

	unpruned, lag atomic.Int64 // rows; nanoseconds
	capped        atomic.Bool  // there may be more unpruned rows
	phases        map[string]*phaseState

	mu      sync.Mutex
	tenants []store.KVTenantUsage
	known   int // tenants
	sampled bool
	tables  []store.TableSize
}

// phaseState is what the gauges show of a phase.
type phaseState struct {
	off  atomic.Bool
	done atomic.Int64 // nanoseconds since 1970
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{
		phases: map[string]*phaseState{PhasePrune: {}, PhaseRollup: {}},
		tables: []store.TableSize{{Table: "kv"}, {Table: "log_timers"}},
	}
	for _, p := range m.phases { // an age from the start on, so that a phase that never works shows
		p.done.Store(time.Now().UnixNano())
	}
	var err1, err2, err3 error
	m.runs, err1 = meter.Int64Counter("queen.sweeper.upkeep",
		metric.WithDescription("Prunes and usage rollups by outcome: done, failed, shed (left out under pressure)."))
	m.pruned, err2 = meter.Int64Counter("queen.kv.pruned", metric.WithDescription("Expired keys deleted."))
	m.duration, err3 = meter.Float64Histogram("queen.sweeper.upkeep.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of prunes and usage rollups."),
		metric.WithExplicitBucketBoundaries(0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 20, 60))
	if err := errors.Join(err1, err2, err3, m.alarms(meter), m.sizes(meter), m.occupancy(meter)); err != nil {
		return nil, err
	}
	m.zero(context.Background())
	return m, nil
}

// zero makes every series exist from the start: what appears with its first
// increment has no rate.
func (m *metrics) zero(ctx context.Context) {
	m.pruned.Add(ctx, 0)
	for phase := range m.phases {
		for _, outcome := range []string{outcomeDone, outcomeFailed, outcomeShed} {
			m.runs.Add(ctx, 0, metric.WithAttributes(phaseKey.String(phase), outcomeKey.String(outcome)))
		}
	}
}

// alarms are the gauges that tell of an upkeep that is not made.
func (m *metrics) alarms(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableGauge("queen.kv.expired_not_pruned",
		metric.WithDescription("Expired keys that were still there after the last prune, up to eight of its budgets."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(m.unpruned.Load())
			return nil
		}))
	_, err5 := meter.Int64ObservableGauge("queen.kv.expired_not_pruned_capped",
		metric.WithDescription("1 where there may be more of them than were counted."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			var capped int64
			if m.capped.Load() {
				capped = 1
			}
			o.Observe(capped)
			return nil
		}))
	_, err2 := meter.Float64ObservableGauge("queen.kv.expiry_lag", metric.WithUnit("s"),
		metric.WithDescription("For how long the oldest of them had been expired."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(time.Duration(m.lag.Load()).Seconds())
			return nil
		}))
	_, err3 := meter.Int64ObservableGauge("queen.sweeper.upkeep.off",
		metric.WithDescription("1 where a part of the upkeep is off until a restart, since the schema does not have what it needs."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for phase, state := range m.phases {
				var off int64
				if state.off.Load() {
					off = 1
				}
				o.Observe(off, metric.WithAttributes(phaseKey.String(phase)))
			}
			return nil
		}))
	_, err4 := meter.Float64ObservableGauge("queen.sweeper.upkeep.age", metric.WithUnit("s"),
		metric.WithDescription("Time since a part of the upkeep was last made by this process."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			for phase, state := range m.phases {
				o.Observe(time.Since(time.Unix(0, state.done.Load())).Seconds(), metric.WithAttributes(phaseKey.String(phase)))
			}
			return nil
		}))
	return errors.Join(err1, err2, err3, err4, err5)
}

func (m *metrics) sizes(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableGauge("queen.sweeper.table.size", metric.WithUnit("By"),
		metric.WithDescription("Size of a table with its indexes, at the last usage rollup."),
		metric.WithInt64Callback(m.eachTable(func(t store.TableSize) int64 { return t.Bytes })))
	_, err2 := meter.Int64ObservableGauge("queen.sweeper.table.dead_rows",
		metric.WithDescription("Row versions of a table that wait for a vacuum, at the last usage rollup."),
		metric.WithInt64Callback(m.eachTable(func(t store.TableSize) int64 { return t.Dead })))
	return errors.Join(err1, err2)
}

func (m *metrics) eachTable(value func(store.TableSize) int64) metric.Int64Callback {
	return func(_ context.Context, o metric.Int64Observer) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, t := range m.tables {
			o.Observe(value(t), metric.WithAttributes(tableKey.String(t.Table)))
		}
		return nil
	}
}

// occupancy are the only gauges with a tenant. The largest have them.
func (m *metrics) occupancy(meter metric.Meter) error {
	_, err1 := meter.Int64ObservableGauge("queen.kv.usage.tenants",
		metric.WithDescription("Tenants with keys or timers at the last usage rollup."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			o.Observe(int64(m.known))
			return nil
		}))
	_, err2 := meter.Int64ObservableGauge("queen.kv.usage.sampled",
		metric.WithDescription("1 where the last usage rollup estimated from a part of the keys."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			var sampled int64
			if m.sampled {
				sampled = 1
			}
			o.Observe(sampled)
			return nil
		}))
	errs := []error{err1, err2}
	for _, g := range []struct {
		name, help string
		value      func(store.KVTenantUsage) int64
	}{
		{"queen.kv.usage.rows", "Live keys of the largest tenants.", func(u store.KVTenantUsage) int64 { return u.KVRows }},
		{"queen.kv.usage.bytes", "Stored bytes of their values.", func(u store.KVTenantUsage) int64 { return u.KVBytes }},
		{"queen.timers.usage.rows", "Timers of the largest tenants.", func(u store.KVTenantUsage) int64 { return u.TimerRows }},
		{"queen.timers.usage.bytes", "Bytes of their payloads.", func(u store.KVTenantUsage) int64 { return u.TimerBytes }},
	} {
		_, err := meter.Int64ObservableGauge(g.name, metric.WithDescription(g.help), metric.WithInt64Callback(
			func(_ context.Context, o metric.Int64Observer) error {
				m.eachTenant(func(u store.KVTenantUsage, label metric.MeasurementOption) { o.Observe(g.value(u), label) })
				return nil
			}))
		errs = append(errs, err)
	}
	for _, g := range []struct {
		name, help string
		value      func(store.KVTenantUsage) float64
	}{
		{"queen.kv.usage.ratio", "Share of their quota of keys that the largest tenants use, 0 without one.", func(u store.KVTenantUsage) float64 { return u.KVQuotaRatio }},
		{"queen.timers.usage.ratio", "Share of their quota of timers that the largest tenants use, 0 without one.", func(u store.KVTenantUsage) float64 { return u.TimerQuotaRatio }},
	} {
		_, err := meter.Float64ObservableGauge(g.name, metric.WithDescription(g.help), metric.WithFloat64Callback(
			func(_ context.Context, o metric.Float64Observer) error {
				m.eachTenant(func(u store.KVTenantUsage, label metric.MeasurementOption) { o.Observe(g.value(u), label) })
				return nil
			}))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (m *metrics) eachTenant(observe func(store.KVTenantUsage, metric.MeasurementOption)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.tenants {
		observe(u, metric.WithAttributes(tenantKey.String(u.Tenant.String())))
	}
}

func (m *metrics) expired(ctx context.Context, e store.KVExpired) {
	m.pruned.Add(ctx, int64(e.Deleted))
	m.unpruned.Store(int64(e.Unpruned))
	m.capped.Store(e.Capped)
	m.lag.Store(int64(e.Lag))
}

func (m *metrics) measured(u store.KVUsage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = 0
	for _, t := range u.Tenants {
		if t.KVRows > 0 || t.TimerRows > 0 { // one that has emptied itself is named once more
			m.known++
		}
	}
	m.sampled = u.Sampled
	m.tenants = append(m.tenants[:0], u.Tenants[:min(len(u.Tenants), TenantsMax)]...)
}

func (m *metrics) sized(sizes []store.TableSize) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tables = sizes
}

func (m *metrics) ran(ctx context.Context, phase, outcome string, elapsed time.Duration) {
	m.runs.Add(ctx, 1, metric.WithAttributes(phaseKey.String(phase), outcomeKey.String(outcome)))
	if outcome == outcomeDone {
		m.duration.Record(ctx, elapsed.Seconds(), metric.WithAttributes(phaseKey.String(phase)))
		m.phases[phase].done.Store(time.Now().UnixNano())
	}
}

func (m *metrics) switchOff(phase string) { m.phases[phase].off.Store(true) }
