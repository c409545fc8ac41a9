package ackfusion_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/telemetry/telemetrytest"
	"github.com/queenmq/queen/services/broker/internal/ackfusion"
)

func TestAFlightIsLinkedWithItsRequests(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		rec := telemetrytest.New(t)
		ack := func(ctx context.Context, rows ...store.AckRow) {
			b.wg.Go(func() { _, _ = b.fuser.Ack(ctx, rows) })
			synctest.Wait()
		}
		leader, l := rec.Request("leader")
		ack(leader, row(1))
		first := b.next()
		one, a := rec.Request("one")
		two, c := rec.Request("two")
		ack(one, row(2), row(3))
		ack(two, row(2)) // the same row
		first.answer(answer{})
		rec.RequireShared(rec.Only("ack flush"), l)
		b.next().answer(answer{err: context.DeadlineExceeded})

		require.Len(t, rec.Named("ack flush"), 2)
		shared := rec.Named("ack flush")[1]
		rec.RequireShared(shared, a, c)
		require.Contains(t, shared.Attributes(), attribute.Int("queen.rows", 2))
		require.Equal(t, codes.Error, shared.Status().Code)
	})
}

func TestAFlightOfOthersIsNoPartOfTheLeadersTrace(t *testing.T) {
	on(t, ackfusion.Config{}, func(t *testing.T, b *bundle) {
		rec := telemetrytest.New(t)
		leader, _ := rec.Request("leader")
		b.wg.Go(func() { _, _ = b.fuser.Ack(leader, []store.AckRow{row(1)}) })
		first := b.next()
		b.ack(row(2))
		first.answer(answer{})
		b.next().answer(answer{})
		rec.Only("ack flush")
	})
}
