package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/queenmq/queen/pkg/logging"
)

// Config names the process.
type Config struct {
	Service  string // such as queen-broker
	Version  string
	Instance string // tells the replicas of a service apart
}

// Telemetry is what the rest of a process records with.
type Telemetry struct {
	Tracers    trace.TracerProvider
	Meters     metric.MeterProvider
	Propagator propagation.TextMapPropagator
	Tracing    bool                 // an exporter of spans is configured
	Registry   *prometheus.Registry // what Handler serves
	idle       *histograms
	shutdowns  []func(context.Context) error
}

// New reads the standard OTEL_* variables. Without any, nothing is exported and
// spans cost nothing; metrics are always there to be scraped.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	res, err := newResource(ctx, cfg)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{
		Tracers:    noop.NewTracerProvider(),
		Registry:   prometheus.NewRegistry(),
		idle:       &histograms{byName: map[string]*dto.MetricFamily{}},
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
	err = errors.Join(t.startTraces(ctx, res), t.startMetrics(ctx, res))
	if err != nil {
		return nil, errors.Join(err, t.Shutdown(ctx))
	}
	return t, nil
}

func newResource(ctx context.Context, cfg Config) (*resource.Resource, error) {
	// Later detectors win, so that OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do.
	res, err := resource.New(ctx,
		resource.WithAttributes(
			semconv.ServiceName(cfg.Service),
			semconv.ServiceVersion(cfg.Version),
			semconv.ServiceInstanceID(cfg.Instance),
		),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("read telemetry resource: %w", err)
	}
	return res, nil
}

func (t *Telemetry) startTraces(ctx context.Context, res *resource.Resource) error {
	if !exporting("TRACES") {
		return nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return fmt.Errorf("start trace exporter (OTEL_TRACES_EXPORTER=%q): %w", os.Getenv("OTEL_TRACES_EXPORTER"), err)
	}
	if autoexport.IsNoneSpanExporter(exporter) {
		return nil
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	t.Tracers, t.Tracing = provider, true
	t.shutdowns = append(t.shutdowns, provider.Shutdown)
	return nil
}

func (t *Telemetry) startMetrics(ctx context.Context, res *resource.Resource) error {
	err := errors.Join(
		t.Registry.Register(collectors.NewGoCollector()),
		t.Registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})),
	)
	if err != nil {
		return fmt.Errorf("register runtime metrics: %w", err)
	}
	scraped, err := promexporter.New(promexporter.WithRegisterer(t.Registry), promexporter.WithoutScopeInfo())
	if err != nil {
		return fmt.Errorf("start prometheus exporter: %w", err)
	}
	// Whoever records bounds his labels, and says what stands for the rest. The limit of
	// the library would put series of its own among them, at random.
	opts := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(scraped), sdkmetric.WithCardinalityLimit(0)}
	if exporting("METRICS") {
		pushed, err := autoexport.NewMetricReader(ctx)
		if err != nil {
			return fmt.Errorf("start metric exporter (OTEL_METRICS_EXPORTER=%q): %w", os.Getenv("OTEL_METRICS_EXPORTER"), err)
		}
		if !autoexport.IsNoneMetricReader(pushed) {
			opts = append(opts, sdkmetric.WithReader(pushed))
		}
	}
	provider := sdkmetric.NewMeterProvider(opts...)
	t.Meters = meters{provider, t.idle}
	t.shutdowns = append(t.shutdowns, provider.Shutdown)
	return nil
}

// exporting decides for one signal. autoexport would send to localhost when
// nothing is set; we want the operator to have asked for it, by naming an
// exporter or an endpoint.
func exporting(signal string) bool {
	if strings.EqualFold(strings.TrimSpace(os.Getenv("OTEL_SDK_DISABLED")), "true") {
		return false
	}
	for _, name := range []string{
		"OTEL_" + signal + "_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT",
	} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

// Shutdown exports what is pending, within the deadline of ctx.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var problems []error
	for _, stop := range t.shutdowns {
		problems = append(problems, stop(ctx))
	}
	t.shutdowns = nil
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("flush telemetry: %w", err)
	}
	return nil
}

// LogErrors sends what goes wrong inside OpenTelemetry (an unreachable
// collector, say) to log. The library knows only one such place per process, so
// this is for main.
func LogErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("telemetry error", logging.Err(err))
	}))
}
