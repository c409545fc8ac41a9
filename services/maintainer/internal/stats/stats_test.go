package stats_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/maintainer/internal/stats"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var errBroken = errors.New("broken")

// turn is one answer of the database.
type turn struct {
	state store.StatsState
	wait  time.Duration
	since time.Duration
	takes time.Duration
	err   error
}

func (a turn) answer() store.StatsTurn {
	return store.StatsTurn{State: a.state, Since: a.since, Wait: a.wait}
}

// script answers with its turns, the last one again and again, and notes when each
// was asked for.
type script struct {
	turns []turn
	began time.Time
	asked []time.Duration
}

func (s *script) next() turn {
	if s.began.IsZero() {
		s.began = time.Now()
	}
	s.asked = append(s.asked, time.Since(s.began))
	answer := s.turns[min(len(s.asked), len(s.turns))-1]
	time.Sleep(answer.takes) // of the bubble's clock
	return answer
}

// steps is a walk of some steps.
type steps struct {
	*script
	left int
}

func (s *steps) Finished() bool { return s.left == 0 }

func (s *steps) Step(context.Context) (store.StatsTurn, error) {
	a := s.next()
	if a.err == nil && a.state == store.StatsDone {
		s.left--
	}
	return a.answer(), a.err
}

func never(context.Context, time.Duration) (stats.Walk, store.StatsTurn, error) {
	return nil, store.StatsTurn{State: store.StatsEarly, Since: 1000 * time.Hour, Wait: 1000 * time.Hour}, nil
}

// run lets a Reconciler work for so long, in the time of a bubble.
func run(t *testing.T, cfg stats.Config, meter metric.Meter, work stats.Work, length time.Duration) {
	t.Helper()
	r, err := stats.NewWith(cfg, logtest.New(t), meter, work)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	require.NoError(t, r.Run(ctx))
}

func TestRefreshesKeepTheirCadence(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	busy, early := store.StatsBusy, store.StatsEarly
	done := func(takes time.Duration) turn { return turn{state: store.StatsDone, takes: takes} }
	for name, c := range map[string]struct {
		turns []turn
		want  []time.Duration
	}{
		"from start to start":                {[]turn{done(100 * ms)}, []time.Duration{0, 10 * s, 20 * s, 30 * s}},
		"a long one is followed by its rest": {[]turn{done(s), done(100 * ms)}, []time.Duration{0, 21 * s, 31 * s}},
		"the lock is tried again soon":       {[]turn{{state: busy}, {state: busy}, done(0)}, []time.Duration{0, s, 2 * s, 12 * s, 22 * s, 32 * s}},
		"another replica did it":             {[]turn{{state: early, wait: 3 * s}, done(0)}, []time.Duration{0, 3 * s, 13 * s, 23 * s, 33 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				db := &script{turns: c.turns}
				run(t, stats.Config{Interval: 10 * s}, noop.Meter{}, stats.Work{Begin: never, Refresh: func(_ context.Context, every time.Duration) (store.StatsTurn, stats.Summary, error) {
					require.Equal(t, 10*s, every)
					a := db.next()
					return a.answer(), stats.Summary{}, a.err
				}}, 35*s)
				require.Equal(t, c.want, db.asked)
			})
		})
	}
}

func TestFailuresAreTriedAgainAtGrowingPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		unreachable := fmt.Errorf("refresh: %w", pgdb.ErrPool)
		db := &script{turns: []turn{
			{err: unreachable, takes: 10 * time.Second}, {err: unreachable}, {err: unreachable},
			{err: errBroken, takes: time.Second}, {state: store.StatsDone},
		}}
		run(t, stats.Config{}, noop.Meter{}, stats.Work{Begin: never, Refresh: func(context.Context, time.Duration) (store.StatsTurn, stats.Summary, error) {
			a := db.next()
			return a.answer(), stats.Summary{}, a.err
		}}, 40*time.Second)
		pauses := []time.Duration{db.asked[1] - 10*time.Second, db.asked[2] - db.asked[1], db.asked[3] - db.asked[2], db.asked[4] - db.asked[3] - time.Second}
		for i, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 20 * time.Second} {
			require.InDelta(t, want, pauses[i], float64(want)/9, "pause %d: waiting for a connection is no work of the database, the rest is", i)
		}
	})
}

func TestFailuresAreLoggedOnceInThirtySeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewRecorder()
		r, err := stats.NewWith(stats.Config{}, log, noop.Meter{}, stats.Work{
			Refresh: func(context.Context, time.Duration) (store.StatsTurn, stats.Summary, error) {
				return store.StatsTurn{}, stats.Summary{}, errBroken
			},
			Begin: func(context.Context, time.Duration) (stats.Walk, store.StatsTurn, error) {
				return nil, store.StatsTurn{}, errBroken
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 59*time.Second)
		defer cancel()
		require.NoError(t, r.Run(ctx))
		require.Equal(t, 2, strings.Count(lines.String(), "statistics could not be kept"))
		require.Equal(t, 1, strings.Count(lines.String(), "not_logged=0"))
	})
}

func TestAMeasurementRestsBetweenItsSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const s = time.Second
		var walks []*steps
		var began time.Time
		refreshes := &script{turns: []turn{{state: store.StatsDone}}}
		run(t, stats.Config{Interval: s, RetainedBytesInterval: time.Minute}, noop.Meter{}, stats.Work{
			Refresh: func(context.Context, time.Duration) (store.StatsTurn, stats.Summary, error) {
				return refreshes.next().answer(), stats.Summary{}, nil
			},
			Begin: func(_ context.Context, every time.Duration) (stats.Walk, store.StatsTurn, error) {
				require.Equal(t, time.Minute, every)
				require.NotEmpty(t, refreshes.asked, "the first refresh makes the rows")
				if began.IsZero() {
					began = time.Now()
				}
				walks = append(walks, &steps{left: 3, script: &script{began: began, turns: []turn{
					{state: store.StatsDone, takes: s / 10}, {state: store.StatsBusy}, {err: errBroken}, {state: store.StatsDone, takes: s / 10},
				}}})
				return walks[len(walks)-1], store.StatsTurn{State: store.StatsDone}, nil
			},
		}, 62*s)
		require.Len(t, walks, 2, "the next one a minute after the start of the first")
		require.Equal(t, time.Minute, walks[1].asked[0])
		asked := walks[0].asked
		require.Len(t, asked, 5)
		require.Equal(t, []time.Duration{0, s / 2, s/2 + s}, asked[:3], "four times the work, or a moment until the lock is free")
		require.InDelta(t, s/10, asked[3]-asked[2], float64(s/90), "a step that failed is made again")
		require.Equal(t, s/2, asked[4]-asked[3])
		require.Greater(t, len(refreshes.asked), 60, "refreshes go on meanwhile")
	})
}

func TestMetricsTellWhatWasDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")
		db := &script{turns: []turn{
			{state: store.StatsDone, takes: 100 * time.Millisecond}, {state: store.StatsBusy},
			{state: store.StatsEarly, since: 4 * time.Second, wait: 6 * time.Second}, {err: errBroken},
			{state: store.StatsEarly, since: time.Hour, wait: time.Hour},
		}}
		run(t, stats.Config{Interval: 10 * time.Second}, meter, stats.Work{Begin: never, Refresh: func(context.Context, time.Duration) (store.StatsTurn, stats.Summary, error) {
			a := db.next()
			return a.answer(), stats.Summary{}, a.err
		}}, 30*time.Second)
		var all metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &all))
		turns, ages := map[string]int64{}, map[string]float64{}
		var duration metricdata.HistogramDataPoint[float64]
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					lane, _ := p.Attributes.Value("lane")
					outcome, _ := p.Attributes.Value("outcome")
					turns[lane.AsString()+" "+outcome.AsString()] = p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					lane, _ := p.Attributes.Value("lane")
					ages[lane.AsString()] = p.Value
				}
			case metricdata.Histogram[float64]:
				duration = data.DataPoints[0]
			}
		}
		require.Equal(t, map[string]int64{"refresh done": 1, "refresh busy": 1, "refresh early": 2, "refresh failed": 1, "retained_bytes done": 0, "retained_bytes busy": 0, "retained_bytes early": 1, "retained_bytes failed": 0}, turns)
		require.EqualValues(t, 1, duration.Count)
		require.InDelta(t, 0.1, duration.Sum, 0.001)
		// At 11 s another replica's refresh was 4 s old; what is older than that is no news.
		require.InDelta(t, 30-7, ages["refresh"], 0.5)
		require.InDelta(t, 30, ages["retained_bytes"], 0.5, "never, as far as is known")
	})
}

// replicas are Reconcilers over one database.
func replicas(t *testing.T, cfg stats.Config, n int) (*pgdb.DB, []*stats.Reconciler) {
	t.Helper()
	db := pgtest.New(t)
	list := make([]*stats.Reconciler, n)
	for i := range list {
		r, err := stats.New(cfg, stats.Deps{Store: store.New(db), Log: logtest.New(t), Meter: noop.Meter{}})
		require.NoError(t, err)
		list[i] = r
	}
	return db, list
}

func TestOnceRefreshesWhateverTheClockSays(t *testing.T) {
	t.Parallel()
	db, list := replicas(t, stats.Config{}, 1)
	for range 2 {
		_, done, err := list[0].Once(t.Context())
		require.NoError(t, err)
		require.True(t, done)
	}
	db.Close()
	_, done, err := list[0].Once(t.Context())
	require.Error(t, err)
	require.False(t, done)
}

// Two replicas do together what one would do, and what they keep is right.
func TestReplicasTakeTurns(t *testing.T) {
	t.Parallel()
	db, list := replicas(t, stats.Config{Interval: time.Hour, RetainedBytesInterval: time.Hour}, 2)
	s := store.New(db)
	_, err := s.PushBundle(t.Context(), []store.PushSegment{{
		Tenant: store.DefaultTenant(), Queue: "q", Partition: "p", Count: 2, Hashes: make([]byte, 32), Blob: []byte("blob"),
		Verified: store.VerifiedMinted,
	}}, store.WaitForLocks)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, len(list))
	for _, r := range list {
		go func() { ended <- r.Run(ctx) }()
	}
	require.Eventually(t, func() bool {
		total, bytes := shown(t, s)
		return total == 2 && bytes == 4
	}, time.Minute, 5*time.Millisecond)
	turn, _, err := s.RefreshStats(t.Context(), time.Hour)
	require.NoError(t, err)
	require.NotEqual(t, store.StatsDone, turn.State, "the clock is the database's")
	cancel()
	for range list {
		require.NoError(t, <-ended)
	}
}

// shown is what the one queue retains, by the statistics.
func shown(t *testing.T, s *store.Store) (messages, bytes int64) {
	t.Helper()
	doc, err := s.StatusQueues(t.Context(), store.StatusFilter{Tenant: store.DefaultTenant()})
	require.NoError(t, err)
	var out struct {
		Queues []struct {
			Messages      struct{ Total int64 }
			RetainedBytes int64
		}
	}
	require.NoError(t, json.Unmarshal(doc, &out))
	require.Len(t, out.Queues, 1)
	return out.Queues[0].Messages.Total, out.Queues[0].RetainedBytes
}
