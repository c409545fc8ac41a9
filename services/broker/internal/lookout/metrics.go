package lookout

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

type metrics struct {
	probes, looks metric.Int64Counter
	ok, failed    []metric.AddOption
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	outcome := func(value string) []metric.AddOption {
		return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", value)))}
	}
	m := &metrics{ok: outcome("ok"), failed: outcome("failed")}
	var errs [2]error
	m.probes, errs[0] = meter.Int64Counter("queen.lookout.probes",
		metric.WithDescription("Questions for the next timer while pops wait and no sweeper is linked, by outcome."))
	m.looks, errs[1] = meter.Int64Counter("queen.lookout.looks",
		metric.WithDescription("Looks for messages of timers while some are expected, by outcome."))
	return m, errors.Join(errs[:]...)
}

func (m *metrics) probed(ctx context.Context, err error) { m.probes.Add(ctx, 1, m.outcome(err)...) }
func (m *metrics) looked(ctx context.Context, err error) { m.looks.Add(ctx, 1, m.outcome(err)...) }

func (m *metrics) outcome(err error) []metric.AddOption {
	if err != nil {
		return m.failed
	}
	return m.ok
}
