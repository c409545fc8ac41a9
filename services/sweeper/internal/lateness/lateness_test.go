package lateness_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/sweeper/internal/lateness"
)

type bundle struct {
	*lateness.Recorder
	reader *sdk.ManualReader
}

func setup(t *testing.T) bundle {
	t.Helper()
	b := bundle{reader: sdk.NewManualReader()}
	var err error
	b.Recorder, err = lateness.New(sdk.NewMeterProvider(sdk.WithReader(b.reader), sdk.WithCardinalityLimit(0)).Meter("test"))
	require.NoError(t, err)
	return b
}

// values are the medians by tenant, and how many timers were dropped.
func (b bundle) values(t *testing.T) (medians map[string]float64, dropped int64) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &rm))
	medians = map[string]float64{}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				if q, _ := p.Attributes.Value(attribute.Key("quantile")); q.AsString() == "0.5" {
					tenant, _ := p.Attributes.Value(attribute.Key("tenant"))
					medians[tenant.AsString()] = p.Value
				}
			}
		case metricdata.Sum[int64]:
			dropped = data.DataPoints[0].Value
		}
	}
	return medians, dropped
}

func TestTheLatenessOfEachTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := uuid.New()
	medians, dropped := b.values(t)
	require.Equal(t, map[string]float64{store.DefaultTenant().String(): 0}, medians, "shown before anything is fired")
	require.Zero(t, dropped)
	b.Fired(t.Context(), store.DefaultTenant(), 2*time.Second)
	b.Fired(t.Context(), other, 3*time.Millisecond)
	medians, _ = b.values(t)
	require.Equal(t, map[string]float64{store.DefaultTenant().String(): 2, other.String(): 0.003}, medians)
}

func TestTenantsWithoutRoomAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range lateness.TenantsMax - 1 {
		b.Fired(t.Context(), uuid.New(), time.Second)
	}
	medians, dropped := b.values(t)
	require.Len(t, medians, lateness.TenantsMax)
	require.Zero(t, dropped)
	late := uuid.New()
	b.Fired(t.Context(), late, time.Second)
	b.Fired(t.Context(), late, time.Second)
	b.Fired(t.Context(), store.DefaultTenant(), time.Second)
	medians, dropped = b.values(t)
	require.Len(t, medians, lateness.TenantsMax)
	require.NotContains(t, medians, late.String())
	require.Equal(t, int64(2), dropped)
	require.InDelta(t, 1, medians[store.DefaultTenant().String()], 0)
}
