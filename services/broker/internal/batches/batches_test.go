package batches_test

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/services/broker/internal/batches"
)

func collected(t *testing.T, reader sdk.Reader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &rm))
	got := map[string]float64{}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		put := func(set attribute.Set, value float64) {
			got[m.Name+" "+set.Encoded(attribute.DefaultEncoder())] = value
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, float64(p.Count))
			}
		}
	}
	return got
}

func TestCallsAreCountedByWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := sdk.NewManualReader()
		r, err := batches.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
		require.NoError(t, err)
		want := map[string]float64{}
		for _, op := range []string{"push", "pop", "ack"} {
			maps.Copy(want, map[string]float64{
				"queen.batches_fired op=" + op: 0, "queen.batch_items_fired op=" + op: 0, "queen.fusion.items_per_batch op=" + op: 0,
				"queen.batch_rtt op=" + op + ",quantile=0.5": 0, "queen.batch_rtt op=" + op + ",quantile=0.99": 0,
			})
		}
		require.Equal(t, want, collected(t, reader), "all are there before anything happens")

		r.Fired(t.Context(), batches.Push, 10, 4*time.Millisecond)
		r.Fired(t.Context(), batches.Push, 30, 4*time.Millisecond)
		r.Fired(t.Context(), batches.Ack, 3, 2*time.Millisecond)
		maps.Copy(want, map[string]float64{
			"queen.batches_fired op=push": 2, "queen.batch_items_fired op=push": 40, "queen.fusion.items_per_batch op=push": 20,
			"queen.batch_rtt op=push,quantile=0.5": 4, "queen.batch_rtt op=push,quantile=0.99": 4, "queen.commit.duration op=push": 2,
			"queen.batches_fired op=ack": 1, "queen.batch_items_fired op=ack": 3, "queen.fusion.items_per_batch op=ack": 3,
			"queen.batch_rtt op=ack,quantile=0.5": 2, "queen.batch_rtt op=ack,quantile=0.99": 2, "queen.commit.duration op=ack": 1,
		})
		require.Equal(t, want, collected(t, reader))
	})
}

func TestTheSizeOfBatchesIsThatOfLately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := sdk.NewManualReader()
		r, err := batches.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
		require.NoError(t, err)
		size := func() float64 { return collected(t, reader)["queen.fusion.items_per_batch op=pop"] }
		r.Fired(t.Context(), batches.Pop, 10, time.Millisecond)
		time.Sleep(time.Minute)
		r.Fired(t.Context(), batches.Pop, 20, time.Millisecond)
		require.InDelta(t, 15, size(), 0)
		time.Sleep(time.Minute)
		require.InDelta(t, 20, size(), 0)
		time.Sleep(time.Minute)
		require.Zero(t, size())
		r.Fired(t.Context(), batches.Pop, 7, time.Millisecond)
		time.Sleep(2 * time.Minute)
		require.Zero(t, size())
	})
}

func TestNobodyNeedsToCount(t *testing.T) {
	t.Parallel()
	var r *batches.Recorder
	r.Fired(t.Context(), batches.Push, 1, time.Second)
}
