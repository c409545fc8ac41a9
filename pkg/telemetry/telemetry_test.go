package telemetry_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/telemetry"
)

func newTelemetry(t *testing.T) *telemetry.Telemetry {
	t.Helper()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Service: "queen-test", Version: "1.2.3", Instance: "i-1"})
	require.NoError(t, err)
	return tel
}

func scrape(t *testing.T, tel *telemetry.Telemetry) *httptest.ResponseRecorder {
	t.Helper()
	rec := httptest.NewRecorder()
	tel.Handler(logtest.New(t)).ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	require.Equal(t, http.StatusOK, rec.Code)
	return rec
}

func TestHandlerServesOwnAndRuntimeMetrics(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t)
	counter, err := tel.Meters.Meter("m").Int64Counter("queen.things")
	require.NoError(t, err)
	counter.Add(t.Context(), 3)

	rec := scrape(t, tel)
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", rec.Header().Get("Content-Type"))
	require.Equal(t, "no-cache", rec.Header().Get("Cache-Control"))
	require.Contains(t, rec.Body.String(), "# TYPE queen_things_total counter\nqueen_things_total 3\n")
	require.Contains(t, rec.Body.String(), "\ngo_goroutines ")
	require.Contains(t, rec.Body.String(), "\nprocess_resident_memory_bytes ")
	require.Regexp(t, `target_info\{.*service_instance_id="i-1".*service_name="queen-test".*service_version="1.2.3"`, rec.Body.String())
	require.NoError(t, tel.Shutdown(t.Context()))
	require.NoError(t, tel.Shutdown(t.Context()), "stopping twice is harmless")
}

func TestManySeriesAreAllShown(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t)
	counter, err := tel.Meters.Meter("m").Int64Counter("queen.things")
	require.NoError(t, err)
	const series = 5000
	for i := range series {
		counter.Add(t.Context(), 1, metric.WithAttributes(attribute.Int("thing", i)))
	}
	require.Equal(t, series, strings.Count(scrape(t, tel).Body.String(), "\nqueen_things_total{thing="))
}

func TestHistogramsAreThereBeforeAnythingIsRecorded(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t)
	meter := tel.Meters.Meter("m")
	lag, err := meter.Float64Histogram("queen.lag", metric.WithUnit("s"), metric.WithDescription("Lag."),
		metric.WithExplicitBucketBoundaries(0.5, 1))
	require.NoError(t, err)
	size, err := meter.Int64Histogram("queen.size", metric.WithUnit("By"))
	require.NoError(t, err)

	const head = "# HELP queen_lag_seconds Lag.\n# TYPE queen_lag_seconds histogram\n"
	before := scrape(t, tel).Body.String()
	require.Contains(t, before, head+`queen_lag_seconds_bucket{le="0.5"} 0
queen_lag_seconds_bucket{le="1"} 0
queen_lag_seconds_bucket{le="+Inf"} 0
queen_lag_seconds_sum 0
queen_lag_seconds_count 0
`)
	require.Contains(t, before, "\nqueen_size_bytes_count 0\n")

	lag.Record(t.Context(), 0.7, metric.WithAttributes(attribute.String("call", "x")))
	size.Record(t.Context(), 1)
	after := scrape(t, tel).Body.String()
	require.Equal(t, 1, strings.Count(after, head))
	require.Contains(t, after, head+`queen_lag_seconds_bucket{call="x",le="0.5"} 0
queen_lag_seconds_bucket{call="x",le="1"} 1
queen_lag_seconds_bucket{call="x",le="+Inf"} 1
queen_lag_seconds_sum{call="x"} 0.7
queen_lag_seconds_count{call="x"} 1
`)
	require.Contains(t, after, "\nqueen_size_bytes_count 1\n")
}

func TestHandlerKeepsTheOtherFamiliesWhenOneFails(t *testing.T) {
	t.Parallel()
	tel := newTelemetry(t)
	require.NoError(t, tel.Registry.Register(brokenCollector{}))
	require.Contains(t, scrape(t, tel).Body.String(), "\ngo_goroutines ")
}

type brokenCollector struct{}

func (brokenCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- prometheus.NewDesc("broken", "x", nil, nil)
}

func (brokenCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "x", nil, nil), http.ErrAbortHandler)
}

func TestNothingIsExportedUnlessAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"nothing set":                {nil, false},
		"exporter none":              {map[string]string{"OTEL_TRACES_EXPORTER": "none"}, false},
		"exporter console":           {map[string]string{"OTEL_TRACES_EXPORTER": "console"}, true},
		"endpoint alone means otlp":  {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true},
		"endpoint of another signal": {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, false},
		"sdk disabled": {map[string]string{
			"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "TRUE",
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			tel := newTelemetry(t)
			require.Equal(t, tc.want, tel.Tracing)
			_, span := tel.Tracers.Tracer("t").Start(t.Context(), "work")
			require.Equal(t, tc.want, span.IsRecording())
		})
	}
}

func TestUnknownExporterIsAnError(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
	_, err := telemetry.New(t.Context(), telemetry.Config{})
	require.ErrorContains(t, err, "carrier-pigeon")
}
