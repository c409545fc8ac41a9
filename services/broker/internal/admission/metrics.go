package admission

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// laneKey labels the class of work.
const laneKey = attribute.Key("lane")

type metrics struct {
	refusals metric.Int64Counter
	lanes    [classes]metric.MeasurementOption
}

func newMetrics(meter metric.Meter, g *Gate) (*metrics, error) {
	m := &metrics{}
	for c := range classes {
		m.lanes[c] = metric.WithAttributeSet(attribute.NewSet(laneKey.String(c.String())))
	}
	var err error
	m.refusals, err = meter.Int64Counter("queen.admission.refused",
		metric.WithDescription("Requests that found no slot within the bounds."))
	if err != nil {
		return nil, err
	}
	inflight, err := meter.Int64ObservableGauge("queen.admission.inflight",
		metric.WithDescription("Slots in use."))
	if err != nil {
		return nil, err
	}
	waiting, err := meter.Int64ObservableGauge("queen.admission.waiting",
		metric.WithDescription("Requests waiting for a slot."))
	if err != nil {
		return nil, err
	}
	entered, err := meter.Int64ObservableGauge("queen.admission.entered",
		metric.WithDescription("Requests waiting for a shared transaction."))
	if err != nil {
		return nil, err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		for c := range classes {
			o.ObserveInt64(inflight, int64(g.lanes[c].inUse), m.lanes[c])
			o.ObserveInt64(waiting, int64(g.lanes[c].waiting.len), m.lanes[c])
			o.ObserveInt64(entered, int64(g.lanes[c].entered), m.lanes[c])
		}
		return nil
	}, inflight, waiting, entered)
	return m, err
}

func (m *metrics) refused(ctx context.Context, c Class) {
	m.refusals.Add(ctx, 1, m.lanes[c])
}
