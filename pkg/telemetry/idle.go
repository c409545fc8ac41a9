package telemetry

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/proto"
)

// meters note which histograms there are. OpenTelemetry shows none that nothing was
// recorded in, and a dashboard or an alert cannot tell that from a process that lacks
// it.
type meters struct {
	metric.MeterProvider
	idle *histograms
}

// Meter implements metric.MeterProvider.
func (m meters) Meter(name string, opts ...metric.MeterOption) metric.Meter {
	return meter{m.MeterProvider.Meter(name, opts...), m.idle}
}

type meter struct {
	metric.Meter
	idle *histograms
}

// Float64Histogram implements metric.Meter.
func (m meter) Float64Histogram(name string, opts ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	h, err := m.Meter.Float64Histogram(name, opts...)
	if err != nil {
		return h, err
	}
	c := metric.NewFloat64HistogramConfig(opts...)
	return h, m.idle.add(name, c.Unit(), c.Description(), c.ExplicitBucketBoundaries())
}

// Int64Histogram implements metric.Meter.
func (m meter) Int64Histogram(name string, opts ...metric.Int64HistogramOption) (metric.Int64Histogram, error) {
	h, err := m.Meter.Int64Histogram(name, opts...)
	if err != nil {
		return h, err
	}
	c := metric.NewInt64HistogramConfig(opts...)
	return h, m.idle.add(name, c.Unit(), c.Description(), c.ExplicitBucketBoundaries())
}

// histograms are all that were created, as they look empty: one series, without labels.
type histograms struct {
	mu     sync.Mutex
	byName map[string]*dto.MetricFamily
}

// add notes a histogram under the name that the exporter gives it.
func (h *histograms) add(name, unit, help string, bounds []float64) error {
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	shown, err := namer.Build(otlptranslator.Metric{Name: name, Unit: unit, Type: otlptranslator.MetricTypeHistogram})
	if err != nil {
		return fmt.Errorf("name the histogram %s: %w", name, err)
	}
	empty := &dto.Histogram{SampleCount: proto.Uint64(0), SampleSum: proto.Float64(0)}
	for _, b := range bounds {
		empty.Bucket = append(empty.Bucket, &dto.Bucket{UpperBound: proto.Float64(b), CumulativeCount: proto.Uint64(0)})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byName[shown] = &dto.MetricFamily{
		Name: proto.String(shown), Help: proto.String(help), Type: dto.MetricType_HISTOGRAM.Enum(),
		Metric: []*dto.Metric{{Histogram: empty}},
	}
	return nil
}

// complete adds the histograms that are missing among families, which are in the order
// of their names.
func (h *histograms) complete(families []*dto.MetricFamily) []*dto.MetricFamily {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, empty := range h.byName {
		at, found := slices.BinarySearchFunc(families, name, func(f *dto.MetricFamily, name string) int {
			return strings.Compare(f.GetName(), name)
		})
		if !found {
			families = slices.Insert(families, at, empty)
		}
	}
	return families
}
