package retention

import (
	"context"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/store"
)

const traceScope = "github.com/queenmq/queen/services/maintainer/internal/retention"

// Attributes of spans: what a phase or a step did.
const (
	lanesKey     = attribute.Key("queen.lanes")
	segmentsKey  = attribute.Key("queen.segments")
	messagesKey  = attribute.Key("queen.messages")
	rowsKey      = attribute.Key("queen.rows")
	heldKey      = attribute.Key("queen.lanes.held")
	partitionKey = attribute.Key("queen.partition_id")
)

// endPhase says on the span of a phase what it did.
func endPhase(span trace.Span, p Phase, err error) {
	defer span.End()
	span.SetAttributes(lanesKey.Int64(p.Lanes), segmentsKey.Int64(p.Segments), messagesKey.Int64(p.Messages), rowsKey.Int64(p.Rows), heldKey.Int64(p.Held))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
}

// traced makes a step under a span that names its lane, where the phase is recorded.
func traced(
	ctx context.Context, phase string, q store.QueuePlan, lane uuid.UUID, step func(ctx context.Context) (store.Step, error),
) (store.Step, error) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return step(ctx)
	}
	ctx, span := parent.TracerProvider().Tracer(traceScope).Start(ctx, phase+" lane step", trace.WithAttributes(
		semconv.MessagingDestinationName(q.Name), partitionKey.String(lane.String()),
	))
	defer span.End()
	out, err := step(ctx)
	span.SetAttributes(rowsKey.Int64(out.Deleted))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return out, err
}
