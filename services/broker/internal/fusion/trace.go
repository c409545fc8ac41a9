package fusion

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/services/broker/internal/spans"
)

// Attributes of a flush. The lanes are named by the requests.
const (
	lanesKey    = attribute.Key("queen.lanes")
	messagesKey = attribute.Key("queen.messages")
)

// startFlush begins the span of what some flights are written with.
func startFlush(flights []*flight) (context.Context, trace.Span) {
	var requests spans.Set
	for _, fl := range flights {
		for _, p := range fl.parts {
			requests.Add(p.owner.span)
		}
	}
	ctx, span := requests.Start(flights[0].ctx(), "push flush")
	if span.IsRecording() {
		messages := 0
		for _, fl := range flights {
			for _, p := range fl.parts {
				messages += len(p.Messages)
			}
		}
		span.SetAttributes(lanesKey.Int(len(flights)), messagesKey.Int(messages))
	}
	return ctx, span
}
