package push

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/retry"
)

// metrics counts by prepared attribute sets, so that counting allocates nothing.
type metrics struct {
	items, calls                             metric.Int64Counter
	queued, duplicate, failed                []metric.AddOption
	committed, aborted, ambiguous, permanent []metric.AddOption
}

func newMetrics(meter metric.Meter) (*metrics, error) {
	items, err := meter.Int64Counter("queen.push.items",
		metric.WithDescription("Pushed items by the status they were answered with."))
	if err != nil {
		return nil, err
	}
	calls, err := meter.Int64Counter("queen.push.calls",
		metric.WithDescription("Database calls of pushes by outcome."))
	if err != nil {
		return nil, err
	}
	return &metrics{
		items: items, calls: calls,
		queued: label("status", wire.StatusQueued), duplicate: label("status", wire.StatusDuplicate), failed: label("status", wire.StatusFailed),
		committed: label("outcome", "committed"), aborted: label("outcome", "aborted"),
		ambiguous: label("outcome", "ambiguous"), permanent: label("outcome", "refused"),
	}, nil
}

func label(key, value string) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String(key, value)))}
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

func (m *metrics) call(ctx context.Context, err error) {
	outcome := m.permanent
	switch {
	case err == nil:
		outcome = m.committed
	case retry.Definite(err):
		outcome = m.aborted
	case store.Ambiguous(err):
		outcome = m.ambiguous
	}
	m.calls.Add(ctx, 1, outcome...)
}
