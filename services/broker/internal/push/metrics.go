package push

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/wire"
)

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	items                     metric.Int64Counter
	queued, duplicate, failed []metric.AddOption
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	items, err := meter.Int64Counter("queen.push.items",
		metric.WithDescription("Pushed items by the status they were answered with."))
	if err != nil {
		return nil, err
	}
	return &metrics{
		items: items, queued: label(wire.StatusQueued), duplicate: label(wire.StatusDuplicate), failed: label(wire.StatusFailed),
	}, nil
}

func label(status string) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("status", status)))}
}

func (m *metrics) results(ctx context.Context, rs []wire.PushResult) {
	var queued, duplicate, failed int64
	for i := range rs {
		switch rs[i].Status {
		case wire.StatusQueued:
			queued++
		case wire.StatusDuplicate:
			duplicate++
		default:
			failed++
		}
	}
	add := func(n int64, opts []metric.AddOption) {
		if n > 0 {
			m.items.Add(ctx, n, opts...)
		}
	}
	add(queued, m.queued)
	add(duplicate, m.duplicate)
	add(failed, m.failed)
}
