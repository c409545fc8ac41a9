package admission

import (
	"context"
	"errors"
	"time"

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
	return m, m.observe(meter, g)
}

// observe shows the state of the gate whenever somebody collects the metrics.
func (m *metrics) observe(meter metric.Meter, g *Gate) error {
	var failed error
	gauge := func(name, help string) metric.Float64ObservableGauge {
		made, err := meter.Float64ObservableGauge("queen.admission."+name, metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return made
	}
	budget := gauge("budget", "Slots that may be in use at once.")
	inflight := gauge("inflight", "Slots in use.")
	waiting := gauge("waiting", "Requests waiting for a slot.")
	entered := gauge("entered", "Requests waiting for a shared transaction.")
	perSecond := gauge("trains_per_s", "Flushes of the database's log that completed commits, per second.")
	perTrain := gauge("txn_per_train", "Transactions one flush completed, on average.")
	cycle := gauge("cycle_ms", "Smoothed time between two flushes, in milliseconds.")
	if failed != nil {
		return failed
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		o.ObserveFloat64(budget, float64(g.law.budget))
		o.ObserveFloat64(perSecond, float64(g.shown.count)/g.cfg.Tick.Seconds())
		o.ObserveFloat64(perTrain, float64(g.shown.commits)/float64(max(1, g.shown.count)))
		o.ObserveFloat64(cycle, float64(g.law.usual)/float64(time.Millisecond))
		for c := range classes {
			o.ObserveFloat64(inflight, float64(g.lanes[c].inUse), m.lanes[c])
			o.ObserveFloat64(waiting, float64(g.lanes[c].waiting.len), m.lanes[c])
			o.ObserveFloat64(entered, float64(g.lanes[c].entered), m.lanes[c])
		}
		return nil
	}, budget, inflight, waiting, entered, perSecond, perTrain, cycle)
	return err
}

func (m *metrics) refused(ctx context.Context, c Class) {
	m.refusals.Add(ctx, 1, m.lanes[c])
}
