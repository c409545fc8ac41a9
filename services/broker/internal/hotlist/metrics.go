package hotlist

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

type metrics struct {
	reseeds, empties metric.Int64Counter
	ok, failed       []metric.AddOption
}

func newMetrics(meter metric.Meter, l *List) (*metrics, error) {
	outcome := func(value string) []metric.AddOption {
		return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", value)))}
	}
	m := &metrics{ok: outcome("ok"), failed: outcome("failed")}
	var errs [9]error
	m.reseeds, errs[0] = meter.Int64Counter("queen.hotlist.reseeds",
		metric.WithDescription("Walks that derived a ring from the database, by outcome."))
	m.empties, errs[1] = meter.Int64Counter("queen.hotlist.empty_claims",
		metric.WithDescription("Claims from candidates of the hot list that gave nothing."))
	var sizes [5]metric.Int64ObservableGauge
	for i, g := range [...]struct{ name, help string }{
		{"queen.hotlist.rings", "Rings: groups of queues that are popped."},
		{"queen.hotlist.lanes", "Lanes that have a number."},
		{"queen.hotlist.ready", "Slots of lanes to claim."},
		{"queen.hotlist.wheel", "Slots of lanes to look at later."},
		{"queen.hotlist.inflight", "Slots of lanes that a pop has in hand."},
	} {
		sizes[i], errs[2+i] = meter.Int64ObservableGauge(g.name, metric.WithDescription(g.help))
	}
	oldest, err := meter.Float64ObservableGauge("queen.hotlist.oldest_ready", metric.WithUnit("s"),
		metric.WithDescription("Wait of the oldest ready lane of a group that is popped."))
	errs[7] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	_, errs[8] = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		c := l.census()
		for i, n := range [...]int{c.rings, c.lanes, c.slots[ready], c.slots[wheel], c.slots[inflight]} {
			o.ObserveInt64(sizes[i], int64(n))
		}
		age, _ := l.Oldest()
		o.ObserveFloat64(oldest, age.Seconds())
		return nil
	}, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], oldest)
	return m, errors.Join(errs[:]...)
}

func (m *metrics) emptyClaim() { m.empties.Add(context.Background(), 1) }

func (m *metrics) reseeded(err error) {
	if err != nil {
		m.reseeds.Add(context.Background(), 1, m.failed...)
		return
	}
	m.reseeds.Add(context.Background(), 1, m.ok...)
}
