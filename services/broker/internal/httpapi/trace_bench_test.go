package httpapi_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/services/broker/internal/httpapi"
)

// tracing are the ways in which a request may be traced.
var tracing = []struct {
	name    string
	sampler sdktrace.Sampler // nil: nobody asked for traces
}{
	{"untraced", nil},
	{"unsampled", sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0))},
	{"sampled", sdktrace.AlwaysSample()},
}

// BenchmarkTracing pushes a message to a surface without a network or an engine, and
// tells what tracing costs as a part of that.
func BenchmarkTracing(b *testing.B) {
	requests := make([]func(), len(tracing))
	for i, way := range tracing {
		requests[i] = request(b, way.sampler)
	}
	took := make([]time.Duration, len(tracing))
	for b.Loop() {
		// In turns, so that what else the machine does falls on all of them.
		for i, send := range requests {
			began := time.Now()
			send()
			took[i] += time.Since(began)
		}
	}
	for i, way := range tracing {
		b.ReportMetric(float64(took[i].Nanoseconds())/float64(b.N), "ns/"+way.name)
		b.ReportMetric(float64(took[i])/float64(took[0]), "x/"+way.name)
	}
}

// request builds a surface and returns what sends one push to it.
func request(b *testing.B, sampler sdktrace.Sampler) func() {
	surface := setupWith(b, func(d *httpapi.Deps) {
		d.Tracers, d.Propagator = nil, propagation.TraceContext{}
		if sampler != nil {
			d.Tracers = provider(b, sampler)
		}
	}).api
	body := []byte(`{"items":[{"queue":"q","partition":"p","payload":{"a":1}}]}`)
	return func() {
		req := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/api/v1/push", bytes.NewReader(body))
		res := httptest.NewRecorder()
		surface.ServeHTTP(res, req)
		require.Equal(b, http.StatusCreated, res.Code)
	}
}

func provider(t testing.TB, sampler sdktrace.Sampler, opts ...sdktrace.TracerProviderOption) trace.TracerProvider {
	p := sdktrace.NewTracerProvider(append(opts, sdktrace.WithSampler(sampler))...)
	t.Cleanup(func() { require.NoError(t, p.Shutdown(context.WithoutCancel(t.Context()))) })
	return p
}
