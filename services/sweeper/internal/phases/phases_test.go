package phases_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/services/sweeper/internal/phases"
)

func collected(t *testing.T, reader sdk.Reader) map[string]float64 {
	t.Helper()
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
	return got
}

func TestPhasesAreCounted(t *testing.T) {
	t.Parallel()
	reader := sdk.NewManualReader()
	r, err := phases.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	want := map[string]float64{"queen.sweeper.sleep ": 0}
	for _, phase := range []string{"fire", "prune", "rollup"} {
		for _, name := range []string{"rows", "phase_skipped", "skip_locked", "cycle"} {
			want["queen.sweeper."+name+" phase="+phase] = 0
		}
	}
	require.Equal(t, want, collected(t, reader), "all are there before anything happens")

	r.Took(phases.Fire, 2500*time.Microsecond)
	r.Rows(t.Context(), phases.Fire, 30)
	r.Rows(t.Context(), phases.Fire, 1)
	r.Skipped(t.Context(), phases.Prune)
	r.Locked(t.Context(), phases.Rollup)
	r.Slept(time.Second)
	for name, value := range map[string]float64{
		"queen.sweeper.cycle phase=fire": 2.5, "queen.sweeper.rows phase=fire": 31, "queen.sweeper.phase_skipped phase=prune": 1,
		"queen.sweeper.skip_locked phase=rollup": 1, "queen.sweeper.sleep ": 1000,
	} {
		want[name] = value
	}
	require.Equal(t, want, collected(t, reader))
}

func TestNobodyNeedsToCount(t *testing.T) {
	t.Parallel()
	var r *phases.Recorder
	r.Took(phases.Fire, time.Second)
	r.Slept(time.Second)
	r.Rows(t.Context(), phases.Fire, 1)
	r.Skipped(t.Context(), phases.Fire)
	r.Locked(t.Context(), phases.Fire)
}
