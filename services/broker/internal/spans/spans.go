package spans

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const scope = "github.com/queenmq/queen/services/broker"

// Requests is how many recorded requests a transaction carries. A span keeps only so
// many links (OTEL_SPAN_LINK_COUNT_LIMIT).
const Requests = attribute.Key("queen.requests")

// Of is the span of the request whose context it is, or nil when nobody records it.
func Of(ctx context.Context) trace.Span {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span
	}
	return nil
}

// Set are the recorded requests that share something. The zero one is empty.
type Set struct {
	list  []trace.Span
	known map[trace.SpanID]struct{}
}

// Add takes in the request of a span, once. Nil, and one that nobody records, is none.
func (s *Set) Add(span trace.Span) {
	if span == nil || !span.IsRecording() {
		return
	}
	id := span.SpanContext().SpanID()
	if _, ok := s.known[id]; ok {
		return
	}
	if s.known == nil {
		s.known = make(map[trace.SpanID]struct{})
	}
	s.known[id] = struct{}{}
	s.list = append(s.list, span)
}

// Start begins the span of what the requests share. Whoever happens to do the work may
// be none of them, so without any the context that is returned carries no span.
func (s *Set) Start(ctx context.Context, name string) (context.Context, trace.Span) {
	if len(s.list) == 0 {
		if Of(ctx) != nil {
			ctx = trace.ContextWithSpan(ctx, noop.Span{})
		}
		return ctx, noop.Span{}
	}
	links := make([]trace.Link, len(s.list))
	for i, span := range s.list {
		links[i] = trace.Link{SpanContext: span.SpanContext()}
	}
	first := s.list[0]
	ctx, shared := first.TracerProvider().Tracer(scope).Start(trace.ContextWithSpan(ctx, first), name,
		trace.WithLinks(links...), trace.WithAttributes(Requests.Int(len(s.list))))
	for _, span := range s.list {
		span.AddLink(trace.Link{SpanContext: shared.SpanContext()})
	}
	return ctx, shared
}

// Fail notes on the span of a context that its work failed.
func Fail(ctx context.Context, err error) {
	if span := Of(ctx); span != nil && err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
}
