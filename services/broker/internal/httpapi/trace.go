package httpapi

import (
	"context"
	"net"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

const traceScope = "github.com/queenmq/queen/services/broker/internal/httpapi"

// traced puts a span around every request but probes and scrapes, as the child of
// what the request names (traceparent).
//
// Nothing is said of a request before the sampler has taken it: otelecho, which builds
// its attributes first, was measured to cost a request 10 us that nobody records.
func (a *API) traced(next echo.HandlerFunc) echo.HandlerFunc {
	tracer := a.deps.Tracers.Tracer(traceScope)
	start := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}
	return func(c echo.Context) error {
		if isProbe(c.Path()) {
			return next(c)
		}
		r := c.Request()
		ctx := a.deps.Propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := tracer.Start(ctx, "request", start...)
		if !span.IsRecording() {
			return next(c) // and nobody further on has to know
		}
		c.SetRequest(r.WithContext(ctx))
		defer span.End()
		nameRequest(span, c)
		err := next(c)
		status := c.Response().Status
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
		return err
	}
}

// isProbe tells whether nobody wants to see a trace of each request of a route.
func isProbe(route string) bool {
	return route == "/health" || route == "/metrics" || route == "/metrics/prometheus"
}

func nameRequest(span trace.Span, c echo.Context) {
	r, route := c.Request(), c.Path()
	method := knownMethod(r.Method)
	if route == "" {
		route = unmatched
	}
	span.SetName(method + " " + route)
	peer, _, _ := net.SplitHostPort(r.RemoteAddr)
	span.SetAttributes(semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route),
		semconv.URLScheme("http"), semconv.URLPath(r.URL.Path), semconv.NetworkPeerAddress(peer))
}

// describePush says on the span of a request what it pushes, and where if that is one
// lane.
func describePush(ctx context.Context, items []wire.PushItem) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() || len(items) == 0 {
		return
	}
	span.SetAttributes(semconv.MessagingOperationTypeSend, semconv.MessagingBatchMessageCount(len(items)))
	queue, lane := true, true
	for i := range items {
		queue = queue && items[i].Queue == items[0].Queue
		lane = lane && queue && items[i].Partition == items[0].Partition
	}
	if queue {
		span.SetAttributes(semconv.MessagingDestinationName(items[0].Queue))
	}
	if lane {
		span.SetAttributes(partition(items[0].Partition))
	}
}

// partition is the attribute of a lane's name.
func partition(name string) attribute.KeyValue {
	return semconv.MessagingDestinationPartitionID(name)
}

// describePop says on the span of a request what it asks for.
func describePop(ctx context.Context, req *pop.Request) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(semconv.MessagingOperationTypeReceive, semconv.MessagingConsumerGroupName(req.Query.Group))
	if req.Queue != "" {
		span.SetAttributes(semconv.MessagingDestinationName(req.Queue))
	}
	if req.Partition != "" {
		span.SetAttributes(partition(req.Partition))
	}
}

// describeAck says on the span of a request what it settles.
func describeAck(ctx context.Context, req *wire.AckRequest) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() || len(req.Items) == 0 {
		return
	}
	span.SetAttributes(semconv.MessagingOperationTypeSettle, semconv.MessagingBatchMessageCount(len(req.Items)),
		semconv.MessagingConsumerGroupName(req.Items[0].Group))
}
