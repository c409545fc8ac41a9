package fusion_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry/telemetrytest"
	"github.com/queenmq/queen/services/broker/internal/admission"
	"github.com/queenmq/queen/services/broker/internal/fusion"
)

func TestAFlushIsLinkedWithItsRequests(t *testing.T) {
	t.Parallel()
	r, rec := setup(t, true, fusion.Config{MaxInflight: 1}, admission.Config{}), telemetrytest.New(t)
	pushAs := func(ctx context.Context, parts ...fusion.Part) {
		r.pending.Go(func() { r.fuser.Push(ctx, parts) })
	}
	pushAs(context.Background(), part("a", "1"))
	first := r.next()
	one, a := rec.Request("one")
	pushAs(one, part("a", "2", "x"))
	r.accumulated(2)
	pushAs(context.Background(), part("a", "3"))
	r.accumulated(3) // not recorded
	two, b := rec.Request("two")
	pushAs(two, part("a", "4"))
	r.accumulated(4)
	first.commit()
	r.next().commit()
	r.pending.Wait()

	require.Eventually(t, func() bool { return len(rec.Ended()) == 1 }, patience, tick)
	flush := rec.Only("push flush")
	rec.RequireShared(flush, a, b)
	require.Subset(t, flush.Attributes(), []attribute.KeyValue{attribute.Int("queen.lanes", 1), attribute.Int("queen.messages", 4)})
}

func TestAFailedFlushSaysSo(t *testing.T) {
	t.Parallel()
	r, rec := setup(t, false, fusion.Config{}, admission.Config{}), telemetrytest.New(t)
	r.db.refuse = func([]store.PushSegment, store.LockWait) error { return errRefused }
	ctx, _ := rec.Request("one")
	r.fuser.Push(ctx, []fusion.Part{part("a", "1")})
	require.Eventually(t, func() bool { return len(rec.Ended()) == 1 }, patience, tick)
	require.Equal(t, codes.Error, rec.Only("push flush").Status().Code)
}
