package httpapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics counts requests. The labels are bounded: routes are templates.
type metrics struct {
	duration metric.Float64Histogram
	labels   sync.Map // labelKey to metric.MeasurementOption
	active   atomic.Int64
	requests atomic.Int64 // since the start, for GET /metrics
	messages atomic.Int64
}

type labelKey struct {
	route, method string
	class         int
}

// Long polls last up to their timeout, everything else should be in the lower part.
func durationBuckets() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

func newMetrics(meter metric.Meter, bs *bodies) (*metrics, error) {
	m := &metrics{}
	var err error
	m.duration, err = meter.Float64Histogram("http.server.request.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of requests, long polls included."),
		metric.WithExplicitBucketBoundaries(durationBuckets()...))
	if err != nil {
		return nil, fmt.Errorf("create request metrics: %w", err)
	}
	active, err := meter.Int64ObservableGauge("http.server.active_requests",
		metric.WithDescription("Requests being worked on, parked long polls included."))
	if err != nil {
		return nil, fmt.Errorf("create request metrics: %w", err)
	}
	inflight, err := meter.Int64ObservableGauge("queen.http.inflight_body", metric.WithUnit("By"),
		metric.WithDescription("Bytes of request bodies being worked on."))
	if err != nil {
		return nil, fmt.Errorf("create request metrics: %w", err)
	}
	items, err := meter.Int64ObservableGauge("queen.http.inflight_items", metric.WithUnit("By"),
		metric.WithDescription("Bytes set aside for the items of those bodies."))
	if err != nil {
		return nil, fmt.Errorf("create request metrics: %w", err)
	}
	waiting, err := meter.Int64ObservableGauge("queen.http.waiting_body",
		metric.WithDescription("Requests waiting until there is room for their body."))
	if err != nil {
		return nil, fmt.Errorf("create request metrics: %w", err)
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(active, m.active.Load())
		o.ObserveInt64(inflight, bs.inflight.Load())
		o.ObserveInt64(items, bs.inflightItems.Load())
		o.ObserveInt64(waiting, bs.waiting[intake].Load()+bs.waiting[upkeep].Load())
		return nil
	}, active, inflight, items, waiting)
	if err != nil {
		return nil, fmt.Errorf("create request metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) record(ctx context.Context, route, method string, status int, took time.Duration) {
	m.duration.Record(ctx, took.Seconds(), m.label(route, method, status/100))
}

// label builds each set of attributes once: they would be the most expensive
// part of counting a request.
func (m *metrics) label(route, method string, class int) metric.MeasurementOption {
	key := labelKey{route, method, class}
	if known, ok := m.labels.Load(key); ok {
		return known.(metric.MeasurementOption)
	}
	made := metric.WithAttributeSet(attribute.NewSet(
		attribute.String("http.route", route),
		attribute.String("http.request.method", method),
		attribute.String("status_class", fmt.Sprintf("%dxx", class)),
	))
	known, _ := m.labels.LoadOrStore(key, made)
	return known.(metric.MeasurementOption)
}
