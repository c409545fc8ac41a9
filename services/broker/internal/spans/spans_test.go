package spans_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/queenmq/queen/pkg/telemetry/telemetrytest"
	"github.com/queenmq/queen/services/broker/internal/spans"
)

// unrecorded is the context of a request that the sampler has left out.
func unrecorded() context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
	}))
}

func TestASharedSpanIsLinkedWithItsRequests(t *testing.T) {
	t.Parallel()
	r := telemetrytest.New(t)
	var set spans.Set
	set.Add(spans.Of(unrecorded()))
	set.Add(nil)
	one, a := r.Request("a")
	_, b := r.Request("b")
	for range 2 {
		set.Add(spans.Of(one))
		set.Add(b)
	}
	set.Add(trace.SpanFromContext(unrecorded()))

	ctx, shared := set.Start(unrecorded(), "flush")
	require.Equal(t, shared, trace.SpanFromContext(ctx))
	shared.End()
	r.RequireShared(r.Only("flush"), a, b)
	require.Contains(t, r.Only("flush").Attributes(), spans.Requests.Int(2))
}

func TestWithoutARecordedRequestThereIsNoSpan(t *testing.T) {
	t.Parallel()
	r := telemetrytest.New(t)
	stranger, _ := r.Request("whoever does the work")
	for name, ctx := range map[string]context.Context{
		"nobody traces": context.Background(), "left out by the sampler": unrecorded(), "of another request": stranger,
	} {
		var none spans.Set
		ctx, span := none.Start(ctx, "flush")
		require.False(t, span.IsRecording(), name)
		require.False(t, trace.SpanFromContext(ctx).IsRecording(), name)
		spans.Fail(ctx, errors.New("boom"))
		span.End()
	}
	require.Empty(t, r.Ended())
}

func TestRequestsThatNobodyRecordsCostNoMemory(t *testing.T) {
	ctx := unrecorded()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		var set spans.Set
		set.Add(spans.Of(ctx))
		_, span := set.Start(ctx, "flush")
		span.End()
	}))
}

func TestAFailureIsNoted(t *testing.T) {
	t.Parallel()
	r := telemetrytest.New(t)
	ctx, span := r.Request("a")
	spans.Fail(ctx, nil)
	spans.Fail(ctx, errors.New("boom"))
	span.End()
	require.Equal(t, codes.Error, r.Only("a").Status().Code)
	require.Equal(t, "boom", r.Only("a").Status().Description)
}
