// Package telemetrytest records the spans of a test.
package telemetrytest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// Recorder keeps the spans that have ended.
type Recorder struct {
	*tracetest.SpanRecorder
	t        testing.TB
	provider *sdktrace.TracerProvider
}

// New makes a recorder of all spans.
func New(t testing.TB) *Recorder {
	spans := tracetest.NewSpanRecorder()
	return &Recorder{spans, t, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}
}

// Request begins a request.
func (r *Recorder) Request(name string) (context.Context, trace.Span) {
	return r.provider.Tracer("test").Start(context.Background(), name)
}

// Only is the one span of a name that has ended.
func (r *Recorder) Only(name string) sdktrace.ReadOnlySpan {
	r.t.Helper()
	found := r.Named(name)
	require.Len(r.t, found, 1, "spans named %s", name)
	return found[0]
}

// Named are the spans of a name that have ended.
func (r *Recorder) Named(name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range r.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// RequireShared requires that a span is a child of the first request, links to all, and
// is linked to by all that have ended.
func (r *Recorder) RequireShared(shared sdktrace.ReadOnlySpan, requests ...trace.Span) {
	r.t.Helper()
	first := requests[0].SpanContext()
	require.Equal(r.t, first.SpanID(), shared.Parent().SpanID(), "it is a child of the first request")
	require.Equal(r.t, first.TraceID(), shared.SpanContext().TraceID())
	var ids []trace.SpanID
	for _, request := range requests {
		ids = append(ids, request.SpanContext().SpanID())
		require.Contains(r.t, linked(request.(sdktrace.ReadOnlySpan)), shared.SpanContext().SpanID())
	}
	require.Equal(r.t, ids, linked(shared))
}

func linked(span sdktrace.ReadOnlySpan) (ids []trace.SpanID) {
	for _, l := range span.Links() {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}
