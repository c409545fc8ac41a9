package popfusion_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/queenmq/queen/pkg/telemetry/telemetrytest"
	"github.com/queenmq/queen/services/broker/internal/popfusion"
)

func TestAFlightIsLinkedWithItsRequests(t *testing.T) {
	on(t, popfusion.Config{}, func(t *testing.T, b *bundle) {
		rec := telemetrytest.New(t)
		b.ask("a", 1)
		first := b.next()
		one, a := rec.Request("one")
		two, c := rec.Request("two")
		b.pop(one, "g", "b", 1)
		b.pop(context.Background(), "g", "c", 1)
		b.pop(two, "g", "d", 1)
		first.answer(answer{})
		require.Empty(t, rec.Ended())
		b.next().answer(answer{})
		flush := rec.Only("pop flush")
		rec.RequireShared(flush, a, c)
		require.Subset(t, flush.Attributes(), []attribute.KeyValue{
			attribute.String("messaging.destination.name", "q"), attribute.String("messaging.consumer.group.name", "g"), attribute.Int("queen.claims", 3),
		})
	})
}
