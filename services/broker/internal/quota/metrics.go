package quota

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Reasons of refusals, as metrics show them. A missing grant counts as a quota.
const (
	rateLimited = iota
	overQuota
	noPool
	disabled
	reasons
)

func reasonNames() [reasons]string {
	return [reasons]string{"rate_limited", "quota", "pool", "disabled"}
}

// maxShown is how many tenants the occupancy gauges name, those closest to a limit.
const maxShown = 100

type metrics struct {
	reads, writes, timers metric.Int64Counter
	reasons               [reasons]metric.MeasurementOption
}

func newMetrics(meter metric.Meter, k *Keeper) (*metrics, error) {
	m := &metrics{}
	var errs [4]error
	m.reads, errs[0] = meter.Int64Counter("queen.kv.read_rejected", metric.WithDescription("Calls with reads of keys that were refused, by reason."))
	m.writes, errs[1] = meter.Int64Counter("queen.kv.write_rejected", metric.WithDescription("Calls with writes of keys that were refused, by reason."))
	m.timers, errs[2] = meter.Int64Counter("queen.timers.schedule_rejected",
		metric.WithDescription("Calls with schedules of timers that were refused, by reason."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	for r, name := range reasonNames() {
		m.reasons[r] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", name)))
		// Shown from the start, so that an alert does not wait for the first refusal.
		for _, c := range []metric.Int64Counter{m.reads, m.writes, m.timers} {
			c.Add(context.Background(), 0, m.reasons[r])
		}
	}
	errs[3] = observe(meter, k)
	return m, errors.Join(errs[:]...)
}

func (m *metrics) refusedKV(reason int, reads, writes bool) {
	if reads {
		m.reads.Add(context.Background(), 1, m.reasons[reason])
	}
	if writes {
		m.writes.Add(context.Background(), 1, m.reasons[reason])
	}
}

func (m *metrics) refusedTimers(reason int) { m.timers.Add(context.Background(), 1, m.reasons[reason]) }

// KVPoolRefused counts a call that got no connection, or was turned away because
// others got none.
func (k *Keeper) KVPoolRefused(reads, writes bool) { k.metrics.refusedKV(noPool, reads, writes) }

// TimersPoolRefused counts a call with schedules that got no connection.
func (k *Keeper) TimersPoolRefused() { k.metrics.refusedTimers(noPool) }

func observe(meter metric.Meter, k *Keeper) error {
	var gauges [4]metric.Int64ObservableGauge
	var errs [6]error
	for i, g := range [...]struct{ name, help string }{
		{"queen.kv.quota_tenants", "Tenants with a quota or usage on record."},
		{"queen.kv.quota_hot", "Tenants at work that are close to one of their limits."},
		{"queen.kv.enabled", "1 while operations on keys are switched on."},
		{"queen.timers.schedule_enabled", "1 while the scheduling of timers is switched on."},
	} {
		gauges[i], errs[i] = meter.Int64ObservableGauge(g.name, metric.WithDescription(g.help))
	}
	age, err := meter.Float64ObservableGauge("queen.kv.quota_age", metric.WithUnit("s"),
		metric.WithDescription("Age of the reading of quotas; 0 before the first."))
	errs[4] = err
	share, err := meter.Float64ObservableGauge("queen.kv.occupancy", metric.WithDescription(
		"Share of its limit that a tenant occupies: rows, bytes or timers. The hundred tenants closest to a limit are shown."))
	errs[5] = err
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s, on := k.Summary(), k.Switches()
		for i, n := range [...]int{s.Tenants, s.Hot, bit(on.KV), bit(on.TimersSchedule)} {
			o.ObserveInt64(gauges[i], int64(n))
		}
		o.ObserveFloat64(age, s.Age.Truncate(time.Millisecond).Seconds())
		for _, f := range k.fullest(maxShown) {
			o.ObserveFloat64(share, f.share, metric.WithAttributes(
				attribute.String("tenant", f.tenant), attribute.String("resource", f.resource)))
		}
		return nil
	}, gauges[0], gauges[1], gauges[2], gauges[3], age, share)
	return err
}

func bit(on bool) int {
	if on {
		return 1
	}
	return 0
}

// fill is how full one resource of a tenant is.
type fill struct {
	tenant, resource string
	share            float64
}

// fullest are the resources of tenants that have limits, the fullest first.
func (k *Keeper) fullest(most int) []fill {
	var all []fill
	for _, t := range k.tenants.Values() {
		all = t.appendFills(all)
	}
	slices.SortFunc(all, func(a, b fill) int {
		switch {
		case a.share > b.share:
			return -1
		case a.share < b.share:
			return 1
		}
		return 0
	})
	return all[:min(len(all), most)]
}

func (t *tenant) appendFills(all []fill) []fill {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, name := range resourceNames() {
		if t.use[r].limit != noLimit {
			all = append(all, fill{t.id.String(), name, t.use[r].share()})
		}
	}
	return all
}
