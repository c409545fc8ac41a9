package kv_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/services/broker/internal/kv"
)

func TestOperationsAreCountedByTheirPath(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, reader := newHeldStore(), sdk.NewManualReader()
		s := newMeasuredService(t, kv.Config{Flights: 1}, h, noQuotas{}, sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
		c := &crowd{t: t, service: s}
		c.send(tenant, op("get", 0))
		first := <-h.calls
		c.send(tenant, op("get", 1))
		c.send(tenant, op("put", 2))
		first.answer <- nil
		second := <-h.calls
		require.Len(t, second.ops, 2)
		second.answer <- nil
		c.all.Wait()
		s.Carried(7)

		var rm metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &rm))
		got := map[string]float64{}
		for _, m := range rm.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					got[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
				}
			}
		}
		for name, want := range map[string]float64{
			"queen.kv.ops op=get,outcome=ok,path=standalone": 2, "queen.kv.ops op=put,outcome=ok,path=standalone": 1,
			"queen.kv.ops op=incr,outcome=failed,path=standalone": 0, "queen.kv.ops op=any,outcome=ok,path=transaction": 7,
			"queen.kv.singleflight_coalesced ": 1, "queen.kv.op_duration quantile=0.5": 0, "queen.kv.op_duration quantile=0.99": 0,
			"queen.kv.bytes direction=in": float64(3*len("[  ]") + len(op("get", 0)) + len(op("get", 1)) + len(op("put", 2))),
		} {
			require.Contains(t, got, name)
			require.InDelta(t, want, got[name], 0, name)
		}
		require.Greater(t, got["queen.kv.bytes direction=out"], got["queen.kv.bytes direction=in"])
	})
}
