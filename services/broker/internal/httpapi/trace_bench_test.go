package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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

// BenchmarkTracing pushes a message to a surface without an engine, over a connection
// and without one, and tells what tracing costs as a part of that.
func BenchmarkTracing(b *testing.B) {
	for name, send := range map[string]func(*bundle) func(){"http": overHTTP, "surface": withoutNetwork} {
		b.Run(name, func(b *testing.B) { compareTracing(b, send) })
	}
}

func compareTracing(b *testing.B, sender func(*bundle) func()) {
	requests := make([]func(), len(tracing))
	for i, way := range tracing {
		requests[i] = sender(surfaceOf(b, way.sampler))
	}
	took := make([][]time.Duration, len(tracing))
	for b.Loop() {
		// In turns, so that what else the machine does falls on all of them.
		for i, send := range requests {
			began := time.Now()
			send()
			took[i] = append(took[i], time.Since(began))
		}
	}
	untraced := median(took[0])
	for i, way := range tracing {
		m := median(took[i])
		b.ReportMetric(float64(m.Nanoseconds()), "ns/"+way.name)
		b.ReportMetric(float64(m)/float64(untraced), "x/"+way.name)
	}
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}

// surfaceOf builds a surface whose requests are traced as a sampler wishes.
func surfaceOf(b *testing.B, sampler sdktrace.Sampler) *bundle {
	return setupWith(b, func(d *httpapi.Deps) {
		d.Tracers, d.Propagator = nil, propagation.TraceContext{}
		if sampler != nil {
			d.Tracers = provider(b, sampler)
		}
	})
}

const oneMessage = `{"items":[{"queue":"q","partition":"p","payload":{"a":1}}]}`

func overHTTP(b *bundle) func() {
	return func() {
		res, _ := b.call(http.MethodPost, "/api/v1/push", oneMessage)
		require.Equal(b.t, http.StatusCreated, res.StatusCode)
	}
}

func withoutNetwork(b *bundle) func() {
	return func() {
		req := httptest.NewRequestWithContext(b.t.Context(), http.MethodPost, "/api/v1/push", strings.NewReader(oneMessage))
		res := httptest.NewRecorder()
		b.api.ServeHTTP(res, req)
		require.Equal(b.t, http.StatusCreated, res.Code)
	}
}

func provider(t testing.TB, sampler sdktrace.Sampler, opts ...sdktrace.TracerProviderOption) trace.TracerProvider {
	p := sdktrace.NewTracerProvider(append(opts, sdktrace.WithSampler(sampler))...)
	t.Cleanup(func() { require.NoError(t, p.Shutdown(context.WithoutCancel(t.Context()))) })
	return p
}
