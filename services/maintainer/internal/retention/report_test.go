package retention

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/queenmq/queen/pkg/logtest"
)

func TestDryRunDeletesNothingAndTakesNoLock(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour, maxWait: 3 * time.Hour})
		lanes := b.lanes(q, 3, 10, 4*time.Hour) // all too old
		lanes[0].consumed = 4                   // of which rule 2 takes four before
		lanes[1].txns = ago(3, time.Hour)
		b.db.dead, b.db.metrics = 1500, 2500
		young := b.lanes(q, 1, 5, 2*time.Hour)[0]
		young.consumed = 5
		b.db.holder = &fakeSession{db: b.db} // a leader at work
		report, err := b.DryRun(t.Context())
		require.NoError(t, err)
		require.Equal(t, Phase{Name: PhaseRetention, Queues: 1, Lanes: 2, Segments: 9, Messages: 90, Bytes: 900, Held: 2}, report.Phase(PhaseRetention))
		require.Equal(t, Phase{Name: PhaseTxns, Queues: 1, Lanes: 1, Rows: 3}, report.Phase(PhaseTxns))
		require.Equal(t, Phase{Name: PhaseEviction, Queues: 1, Lanes: 3, Segments: 26, Messages: 260, Bytes: 2600}, report.Phase(PhaseEviction))
		require.Equal(t, Phase{Name: PhaseCleanup, Lanes: 1500, Rows: 1500}, report.Phase(PhaseCleanup))
		require.Equal(t, Phase{Name: PhaseMetrics, Rows: 2500}, report.Phase(PhaseMetrics))
		require.Equal(t, []Queue{{ID: q.id, Name: "q", Segments: 9, Messages: 90, Bytes: 900, SidecarRows: 3, Evicted: 260, Held: 2}}, report.Queues)
		require.Equal(t, 35, q.left())
		require.Empty(t, b.db.named("TryLock", "RetentionStep", "TxnsStep", "EvictStep", "CleanupStep", "PurgeMetrics", "WalkStep", "ClockDue"))
	})
}

func TestDryRunWithoutCleanupLooksAtNoPartition(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		b.db.dead = 3
		report, err := b.DryRun(t.Context())
		require.NoError(t, err)
		require.Zero(t, report.Phase(PhaseCleanup).Rows)
		require.Empty(t, b.db.named("ForecastCleanup"))
	})
}

func TestDryRunSaysWhatACycleThenDoes(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		for i := range 3 {
			q := b.queue(fakeQueue{all: time.Duration(i) * time.Hour, completed: 90 * time.Minute, maxWait: 5 * time.Hour})
			for j, l := range b.lanes(q, 1200, 6, 2*time.Hour) {
				l.consumed = j%5 - 1
				if j%100 == 0 {
					l.segments[0] = time.Now().Add(-6 * time.Hour)
				}
			}
		}
		planned, err := b.DryRun(t.Context())
		require.NoError(t, err)
		done, err := b.Once(t.Context())
		require.NoError(t, err)
		for _, name := range []string{PhaseRetention, PhaseEviction} {
			require.NotZero(t, done.Phase(name).Segments)
			require.Equal(t, done.Phase(name).Segments, planned.Phase(name).Segments, name)
			require.Equal(t, done.Phase(name).Bytes, planned.Phase(name).Bytes, name)
		}
	})
}

func TestDryRunThatTakesLongCountsNothingTwice(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		q := b.queue(fakeQueue{completed: time.Hour})
		for _, l := range b.lanes(q, 2500, 2, 2*time.Hour)[:500] {
			l.consumed = 2
		}
		b.db.cost["RetentionPage"] = HeldMin + time.Second
		report, err := b.DryRun(t.Context())
		require.NoError(t, err)
		p := report.Phase(PhaseRetention)
		require.EqualValues(t, 500, p.Lanes)
		require.EqualValues(t, 1000, p.Segments)
		require.EqualValues(t, 2000, p.Held)
		require.Len(t, b.db.named("RetentionPage"), 3)
	})
}

func TestDryRunNamesWhatFailed(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		b.lanes(b.queue(fakeQueue{all: time.Hour}), 1, 1, 2*time.Hour)
		for _, name := range []string{"Plan", "RetentionPage", "Forecast", "ForecastCleanup", "ForecastMetrics"} {
			b.db.hook = func(call string) error {
				if call == name {
					return errBroken
				}
				return nil
			}
			_, err := b.DryRun(t.Context())
			require.ErrorIs(t, err, errBroken, name)
		}
		b.db.down = errLost
		_, err := b.DryRun(t.Context())
		require.ErrorIs(t, err, errLost)
	})
}

func TestQueuesOfAReportAreInOrder(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		for _, name := range []string{"b", "a", "c", "a"} { // of two tenants
			b.lanes(b.queue(fakeQueue{name: name, all: time.Hour}), 1, 1, 2*time.Hour)
		}
		report, err := b.Once(t.Context())
		require.NoError(t, err)
		var names []string
		for _, q := range report.Queues {
			names = append(names, q.Name)
			require.EqualValues(t, 1, q.Segments)
		}
		require.Equal(t, []string{"a", "a", "b", "c"}, names)
		require.Negative(t, int(report.Queues[0].ID[15])-int(report.Queues[1].ID[15]))
	})
}

// series are the values of the metrics of a reader, by name and label.
func series(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	out := map[string]float64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				out[m.Name+label(p.Attributes.ToSlice())] = float64(p.Value)
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				out[m.Name] = float64(p.Value)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				out[m.Name] = p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				out[m.Name+label(p.Attributes.ToSlice())] = float64(p.Count)
			}
		}
	}
	return out
}

func TestMetricsOfACycle(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		reader := sdkmetric.NewManualReader()
		log, _ := logtest.NewRecorder()
		r, err := newRetention(b.cfg, Deps{Log: log, Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("t")}, b.db.open)
		require.NoError(t, err)
		_, lanes := b.busy()
		l := r.newLeader()
		_, err = l.cycle(t.Context())
		require.NoError(t, err)
		got := series(t, reader)
		for name, want := range map[string]float64{
			"queen.retention.cycles{swept}":             1,
			"queen.retention.segments{retention}":       4,
			"queen.retention.messages{retention}":       40,
			"queen.retention.bytes{retention}":          400,
			"queen.retention.segments{eviction}":        1,
			"queen.retention.messages{eviction}":        10,
			"queen.retention.sidecar_rows":              5,
			"queen.retention.partitions":                7,
			"queen.retention.metrics_rows":              11,
			"queen.retention.repaired_watermarks":       3,
			"queen.retention.leader":                    1,
			"queen.retention.held_lanes":                2,
			"queen.retention.oldest_due":                6 * 3600,
			"queen.retention.cycle.duration":            1,
			"queen.retention.phase.duration{retention}": 1,
			"queen.retention.phase.duration{metrics}":   1,
		} {
			require.InDelta(t, want, got[name], 0.01, name)
		}

		lanes[1].locked = true
		b.db.queues[0].all = time.Hour
		_, err = l.cycle(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.InDelta(t, 60+2, series(t, reader)["queen.retention.since_success"], 2)
		b.db.hook = func(call string) error { return map[bool]error{true: errLost}[call == "Plan"] }
		_, err = l.cycle(t.Context())
		require.Error(t, err)
		got = series(t, reader)
		require.Zero(t, got["queen.retention.leader"], "it does not know")
		require.NotContains(t, got, "queen.retention.oldest_due")
		require.NotContains(t, got, "queen.retention.held_lanes")
		require.GreaterOrEqual(t, got["queen.retention.since_success"], 60.0)
		b.db.hook = nil
		b.db.queues = nil
		_, err = l.cycle(t.Context())
		require.NoError(t, err)
		_, err = l.evict(t.Context())
		require.NoError(t, err)
		b.db.holder = &fakeSession{db: b.db}
		_, err = l.cycle(t.Context())
		require.ErrorIs(t, err, ErrNotLeader)
		got = series(t, reader)
		for name, want := range map[string]float64{
			"queen.retention.cycles{swept}":            2,
			"queen.retention.cycles{failed}":           1,
			"queen.retention.cycles{idle}":             1,
			"queen.retention.cycles{skipped}":          1,
			"queen.retention.eviction_turns":           1,
			"queen.retention.step_timeouts{retention}": 1,
			"queen.retention.leader":                   0,
			"queen.retention.since_success":            0,
		} {
			require.InDelta(t, want, got[name], 0.01, name)
		}
		require.NotContains(t, got, "queen.retention.oldest_due", "of that the leader knows")
		require.NotContains(t, got, "queen.retention.held_lanes")
	})
}

func TestSeriesExistFromTheStart(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		reader := sdkmetric.NewManualReader()
		_, err := newRetention(b.cfg, Deps{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("t")}, b.db.open)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		got := series(t, reader)
		require.InDelta(t, 60, got["queen.retention.since_success"], 0.01, "from the start on")
		delete(got, "queen.retention.since_success")
		var names []string
		for name, value := range got {
			require.Zero(t, value, name)
			names = append(names, strings.TrimPrefix(name, "queen.retention."))
		}
		want := []string{"leader", "eviction_turns", "sidecar_rows", "partitions", "metrics_rows", "repaired_watermarks"}
		for _, outcome := range []string{outcomeFailed, outcomeIdle, outcomeSkipped, outcomeSwept} {
			want = append(want, "cycles{"+outcome+"}")
		}
		for _, p := range phases {
			want = append(want, "step_timeouts{"+p.name+"}", "step_failures{"+p.name+"}")
		}
		for _, p := range []string{PhaseRetention, PhaseEviction} {
			want = append(want, "segments{"+p+"}", "messages{"+p+"}", "bytes{"+p+"}")
		}
		require.ElementsMatch(t, want, names)
	})
}

func TestSpansOfACycle(t *testing.T) {
	bubble(t, Config{Cleanup: true}, func(t *testing.T, b *bench) {
		spans := tracetest.NewSpanRecorder()
		log, _ := logtest.NewRecorder()
		deps := Deps{Log: log, Meter: sdkmetric.NewMeterProvider().Meter("t"), Tracers: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}
		r, err := newRetention(b.cfg, deps, b.db.open)
		require.NoError(t, err)
		b.db.hook = func(call string) error { return map[bool]error{true: errLost}[call == "Position"] }
		_, err = r.Once(t.Context())
		require.Error(t, err)
		var names, failed []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
			if s.Status().Description != "" {
				failed = append(failed, s.Name())
			}
		}
		require.Equal(t, []string{
			"retention retention", "retention txns", "retention eviction", "retention cleanup", "retention metrics", "retention walk", "retention cycle",
		}, names)
		require.Equal(t, []string{"retention walk", "retention cycle"}, failed)
	})
}

func TestAStepIsASpanThatNamesItsLane(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, b *bench) {
		_, lanes := b.busy()
		spans := tracetest.NewSpanRecorder()
		log, _ := logtest.NewRecorder()
		deps := Deps{Log: log, Meter: sdkmetric.NewMeterProvider().Meter("t"), Tracers: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}
		r, err := newRetention(b.cfg, deps, b.db.open)
		require.NoError(t, err)
		_, err = r.Once(t.Context())
		require.NoError(t, err)
		byName := map[string]sdktrace.ReadOnlySpan{}
		for _, s := range spans.Ended() {
			byName[s.Name()] = s
		}
		step, phase := byName["retention lane step"], byName["retention retention"]
		require.Equal(t, phase.SpanContext().SpanID(), step.Parent().SpanID())
		require.Equal(t, byName["retention cycle"].SpanContext().SpanID(), phase.Parent().SpanID())
		require.Subset(t, step.Attributes(), []attribute.KeyValue{
			attribute.String("messaging.destination.name", "q"), attribute.String("queen.partition_id", lanes[0].id.String()), attribute.Int("queen.rows", 4),
		})
		require.Subset(t, phase.Attributes(), []attribute.KeyValue{attribute.Int("queen.segments", 4), attribute.Int("queen.messages", 40), attribute.Int("queen.lanes.held", 2)})
		require.Contains(t, byName, "txns lane step")
		require.Contains(t, byName, "eviction lane step")
	})
}

func label(attrs []attribute.KeyValue) string {
	if len(attrs) == 0 {
		return ""
	}
	return "{" + attrs[0].Value.AsString() + "}"
}
