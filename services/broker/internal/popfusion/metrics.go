package popfusion

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

type metrics struct {
	flights, claims metric.Int64Counter
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	m := &metrics{}
	var err1, err2 error
	m.flights, err1 = meter.Int64Counter("queen.pop.fusion.calls", metric.WithDescription("Calls that claimed for several pops."))
	m.claims, err2 = meter.Int64Counter("queen.pop.fusion.claims", metric.WithDescription("Pops that shared those calls, by outcome."))
	return m, errors.Join(err1, err2)
}

func (m *metrics) landed(ctx context.Context, served, missed int) {
	m.flights.Add(ctx, 1)
	m.claims.Add(ctx, int64(served), metric.WithAttributes(attribute.String("outcome", "served")))
	if missed > 0 {
		m.claims.Add(ctx, int64(missed), metric.WithAttributes(attribute.String("outcome", "missed")))
	}
}
