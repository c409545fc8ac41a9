package dedup

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

type metrics struct {
	suspects, hydrations, catchUps, scans, suppressed, failures metric.Int64Counter
}

func newMetrics(meter metric.Meter, b *budget) (*metrics, error) {
	m := &metrics{}
	for _, c := range []struct {
		to         *metric.Int64Counter
		name, text string
	}{
		{&m.suspects, "queen.dedup.suspects", "Sidecar rows named to SQL because they may hold a pushed id."},
		{&m.hydrations, "queen.dedup.hydrations", "Lanes whose window began to be read."},
		{&m.catchUps, "queen.dedup.catch_ups", "Reads of what others wrote to a remembered lane."},
		{&m.scans, "queen.dedup.scans", "Marks for which a window was read and not kept."},
		{&m.suppressed, "queen.dedup.suppressed", "Times that a lane did not fit the budget."},
		{&m.failures, "queen.dedup.failures", "Reads that failed or took too long."},
	} {
		var err error
		if *c.to, err = meter.Int64Counter(c.name, metric.WithDescription(c.text)); err != nil {
			return nil, err
		}
	}
	bytes, err := meter.Int64ObservableGauge("queen.dedup.bytes", metric.WithDescription("Memory of the dedup cache."), metric.WithUnit("By"))
	if err != nil {
		return nil, err
	}
	lanes, err := meter.Int64ObservableGauge("queen.dedup.lanes", metric.WithDescription("Lanes that the dedup cache knows."))
	if err != nil {
		return nil, err
	}
	evicted, err := meter.Int64ObservableCounter("queen.dedup.evicted", metric.WithDescription("Lanes dropped for others."))
	if err != nil {
		return nil, err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(bytes, b.used.Load())
		o.ObserveInt64(lanes, b.lanes())
		o.ObserveInt64(evicted, b.evicted.Load())
		return nil
	}, bytes, lanes, evicted)
	return m, err
}
