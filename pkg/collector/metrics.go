package collector

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// instruments show how the collector itself does.
type instruments struct {
	flushes         metric.Int64Counter
	written, failed []metric.AddOption
}

func newInstruments(meter metric.Meter, c *Counters) (*instruments, error) {
	m := &instruments{written: outcome("written"), failed: outcome("failed")}
	var errs [2]error
	m.flushes, errs[0] = meter.Int64Counter("queen.collector.flushes",
		metric.WithDescription("Attempts to write what this process has counted, by outcome."))
	_, errs[1] = meter.Int64ObservableCounter("queen.collector.unattributed",
		metric.WithDescription("Counts that are missing at their queue, because too many queues were in use at once."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(c.dropped.Load())
			return nil
		}))
	return m, errors.Join(errs[:]...)
}

func outcome(name string) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", name)))}
}

func (m *instruments) flushed(ctx context.Context, err error) {
	if err != nil {
		m.flushes.Add(ctx, 1, m.failed...)
		return
	}
	m.flushes.Add(ctx, 1, m.written...)
}
