package push_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/services/broker/internal/push"
)

func TestItemsAndCallsAreCountedByOutcome(t *testing.T) {
	t.Parallel()
	reader := sdk.NewManualReader()
	backend := newFake()
	backend.fail = loseFirst
	b := setupWith(t, push.Config{}, sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), backend, time.Minute)
	b.push(t, item("q", "a", "x", "1"), item("q", "a", "", "1"))
	b.push(t, item("q", "a", "x", "1"))

	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	got := make(map[string]int64)
	for _, m := range rm.ScopeMetrics[0].Metrics {
		sum, ok := m.Data.(metricdata.Sum[int64])
		if !ok {
			continue
		}
		for _, p := range sum.DataPoints {
			got[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
		}
	}
	require.Equal(t, map[string]int64{
		"queen.push.items status=queued":     2,
		"queen.push.items status=duplicate":  1,
		"queen.push.calls outcome=ambiguous": 1,
		"queen.push.calls outcome=committed": 2,
	}, got)
}
