package timers

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of spans: what was delivered, and what became of it.
const (
	segmentsKey = attribute.Key("queen.segments")
	timersKey   = attribute.Key("queen.timers")
	claimedKey  = attribute.Key("queen.timers.claimed")
	firedKey    = attribute.Key("queen.timers.fired")
	staleKey    = attribute.Key("queen.timers.stale")
	failedKey   = attribute.Key("queen.timers.failed")
)

// startFire begins the span of a fire.
func (d *drain) startFire(ctx context.Context, v volley) (context.Context, trace.Span) {
	ctx, span := d.tracer.Start(ctx, "timers fire")
	if span.IsRecording() {
		span.SetAttributes(segmentsKey.Int(len(v)), timersKey.Int(len(v.timers())))
	}
	return ctx, span
}

// endDrain says on the span of a drain what it did.
func endDrain(span trace.Span, d *drain) {
	defer span.End()
	span.SetAttributes(claimedKey.Int(d.sum.Claimed), firedKey.Int(d.sum.Fired), staleKey.Int(d.sum.Stale), failedKey.Int(d.sum.Failed))
	if d.problem != nil {
		span.SetStatus(codes.Error, d.problem.Error())
	}
}
