package pgdb

import (
	"context"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// nameKey carries the name of the work through the context, for its spans.
type nameKey struct{}

// WithTelemetry records spans and durations of the database work, named as Do
// names it. Parameters are never recorded. A nil provider records nothing.
func WithTelemetry(tracers trace.TracerProvider, meters metric.MeterProvider) Option {
	if tracers == nil {
		tracers = tracenoop.NewTracerProvider()
	}
	if meters == nil {
		meters = metricnoop.NewMeterProvider()
	}
	return func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = otelpgx.NewTracer(
			otelpgx.WithTracerProvider(tracers),
			otelpgx.WithMeterProvider(meters),
			otelpgx.WithSpanNameCtxFunc(spanName),
			otelpgx.WithMetricOperationName(spanName),
			// Waits for a connection are in Stat; a span for each is noise.
			otelpgx.WithDisableAcquireTracer(),
		)
	}
}

func spanName(ctx context.Context, _ string) string {
	if name, ok := ctx.Value(nameKey{}).(string); ok {
		return name
	}
	return "sql"
}
