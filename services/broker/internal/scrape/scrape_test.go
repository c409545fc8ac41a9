package scrape_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/scrape"
)

var errAway = errors.New("away")

// database answers what a test says.
type database struct {
	mu     sync.Mutex
	answer store.PrometheusMetrics
	err    error
	takes  time.Duration
	calls  int
	asked  int // queues
}

func (d *database) PrometheusMetrics(ctx context.Context, maxQueues int) (store.PrometheusMetrics, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	d.asked = maxQueues
	select {
	case <-ctx.Done():
		return store.PrometheusMetrics{}, ctx.Err()
	case <-time.After(d.takes):
		return d.answer, d.err
	}
}

type bundle struct {
	*scrape.Scrape
	db     *database
	reader *sdk.ManualReader
	log    *logtest.Recorder
	parked map[string]int64
	all    int64
}

// on runs a test inside a bubble.
func on(t *testing.T, test func(t *testing.T, b *bundle)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewRecorder()
		b := &bundle{reader: sdk.NewManualReader(), log: lines, db: &database{answer: store.PrometheusMetrics{
			Cluster: store.WorkerMetrics{Counted: store.Counted{PushMessages: 7, AckSuccess: 4, AckFailed: 1}, DeadLetters: 2, DatabaseErrors: 3},
			Rates: []store.QueueRate{
				{Queue: "q", AgeSeconds: 30, PushMessages: 60, AckFailed: 5, AvgLagMillis: 1.5, MaxLagMillis: 9, Parked: 0.5}, {Queue: "other", PopEmpty: 8},
			},
			DeadLetters: []store.QueueDeadLetters{
				{Queue: "q", Count: 2}, {Queue: "idle"}, {Queue: "other", Count: 3},
			},
		}}}
		var err error
		b.Scrape, err = scrape.New(scrape.Config{MaxQueues: 17}, scrape.Deps{
			Store: b.db, Waiting: func() (map[string]int64, int64) { return b.parked, b.all },
			Meter: sdk.NewMeterProvider(sdk.WithReader(b.reader)).Meter("test"), Log: log,
		})
		require.NoError(t, err)
		require.NotContains(t, b.collect(t), "queen.dlq_depth scope=cluster", "it does not run yet")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		synctest.Wait()
		test(t, b)
		cancel()
		require.NoError(t, <-done)
		require.NotContains(t, b.collect(t), "queen.dlq_depth scope=cluster", "it does not run any more")
	})
}

// collect is what somebody sees who collects now.
func (b *bundle) collect(t *testing.T) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, b.reader.Collect(t.Context(), &rm))
	got := map[string]float64{}
	put := func(name string, set attribute.Set, value float64) {
		if text := set.Encoded(attribute.DefaultEncoder()); text != "" {
			name += " " + text
		}
		require.NotContains(t, got, name)
		got[name] = value
	}
	for _, m := range rm.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				put(m.Name, p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				put(m.Name, p.Attributes, float64(p.Value))
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				put(m.Name, p.Attributes, p.Value)
			}
		}
	}
	return got
}

func TestWhatTheDatabaseSaysIsShown(t *testing.T) {
	on(t, func(t *testing.T, b *bundle) {
		got := b.collect(t)
		require.Equal(t, 17, b.db.asked)
		for name, want := range map[string]float64{
			"queen.cluster.push_messages scope=cluster": 7, "queen.cluster.ack_messages scope=cluster": 5, "queen.cluster.dlq scope=cluster": 2,
			"queen.cluster.db_errors scope=cluster": 3, "queen.cluster.pop_messages scope=cluster": 0,
			"queen.cluster.ack result=success,scope=cluster": 4, "queen.cluster.ack result=failed,scope=cluster": 1,
			"queen.queue.push_messages_per_minute queue=q": 60, "queen.queue.metrics_age queue=q": 30, "queen.queue.parked_consumers queue=q": 0.5,
			"queen.queue.ack_per_minute queue=q,result=failed": 5, "queen.queue.ack_per_minute queue=q,result=success": 0,
			"queen.queue.pop_lag queue=q,stat=avg": 1.5, "queen.queue.pop_lag queue=q,stat=max": 9,
			"queen.queue.pop_empty_per_minute queue=other": 8, "queen.queue.conflated_per_minute queue=q": 0,
			"queen.dlq_depth scope=cluster": 5, "queen.dlq_depth_by_queue queue=q": 2, "queen.dlq_depth_by_queue queue=idle": 0,
			"queen.file_buffer_db_healthy": 1, "queen.file_buffer_pending": 0,
			"queen.ephemeral.messages verb=push": 0, "queen.ephemeral.wipes": 0,
		} {
			require.Contains(t, got, name)
			require.InDelta(t, want, got[name], 0, name)
		}
	})
}

func TestAnAnswerServesForAWhile(t *testing.T) {
	on(t, func(t *testing.T, b *bundle) {
		b.collect(t)
		b.db.answer.Cluster.PushMessages = 8
		time.Sleep(scrape.Fresh - 1)
		require.InDelta(t, 7, b.collect(t)["queen.cluster.push_messages scope=cluster"], 0)
		require.Equal(t, 1, b.db.calls)
		time.Sleep(time.Nanosecond)
		require.InDelta(t, 8, b.collect(t)["queen.cluster.push_messages scope=cluster"], 0)
		require.Equal(t, 2, b.db.calls)
	})
}

func TestWithoutTheDatabaseTheRestIsShown(t *testing.T) {
	on(t, func(t *testing.T, b *bundle) {
		b.parked, b.all = map[string]int64{"q": 2}, 2
		b.collect(t)
		b.db.err = errAway
		for range 3 {
			time.Sleep(scrape.Fresh)
			got := b.collect(t)
			require.NotContains(t, got, "queen.cluster.push_messages scope=cluster")
			require.NotContains(t, got, "queen.dlq_depth scope=cluster")
			require.NotContains(t, got, "queen.queue.metrics_age queue=q")
			require.InDelta(t, 0, got["queen.file_buffer_db_healthy"], 0)
			require.InDelta(t, 2, got["queen.parked_long_polls queue=q"], 0, "its name was known")
			b.collect(t)
		}
		require.Equal(t, 4, b.db.calls, "that it does not answer also serves for a while")
		require.Equal(t, 1, strings.Count(b.log.String(), "metrics of the installation are missing"))
		b.db.err = nil
		time.Sleep(scrape.Fresh)
		require.Contains(t, b.collect(t), "queen.cluster.push_messages scope=cluster")
	})
}

func TestADatabaseThatHangsIsNotWaitedForLong(t *testing.T) {
	on(t, func(t *testing.T, b *bundle) {
		b.db.takes = time.Hour
		began := time.Now()
		got := b.collect(t)
		require.Equal(t, scrape.ReadTimeout, time.Since(began))
		require.InDelta(t, 0, got["queen.file_buffer_db_healthy"], 0)
	})
}

func TestASlowAnswerIsForTheNextScrape(t *testing.T) {
	on(t, func(t *testing.T, b *bundle) {
		const name = "queen.cluster.push_messages scope=cluster"
		collect := func() (stored float64, took time.Duration) {
			began := time.Now()
			return b.collect(t)[name], time.Since(began)
		}
		b.db.takes = 100 * time.Millisecond
		stored, took := collect()
		require.InDelta(t, 7, stored, 0, "there is no other")
		require.Equal(t, b.db.takes, took)

		b.db.answer.Cluster.PushMessages = 8
		time.Sleep(scrape.Fresh)
		stored, took = collect()
		require.InDelta(t, 7, stored, 0)
		require.Equal(t, scrape.Patience, took)
		time.Sleep(time.Second)
		stored, took = collect()
		require.InDelta(t, 8, stored, 0)
		require.Zero(t, took)
		require.Equal(t, 2, b.db.calls)

		b.db.answer.Cluster.PushMessages = 9
		time.Sleep(scrape.Old)
		stored, took = collect()
		require.InDelta(t, 9, stored, 0, "what is known is old")
		require.Equal(t, b.db.takes, took)
		b.db.takes = 0
		b.db.answer.Cluster.PushMessages = 10
		time.Sleep(scrape.Fresh)
		stored, took = collect()
		require.InDelta(t, 10, stored, 0)
		require.Zero(t, took)
	})
}

func TestPopsOfQueuesWithoutSeriesAreTheOthers(t *testing.T) {
	on(t, func(t *testing.T, b *bundle) {
		require.NotContains(t, b.collect(t), "queen.parked_long_polls queue=other", "none wait")
		// Two wait for queues of a namespace, and are counted for none.
		b.parked, b.all = map[string]int64{"q": 2, "hidden": 3, "unheard-of": 4, "other": 5}, 16
		got := b.collect(t)
		require.InDelta(t, 2, got["queen.parked_long_polls queue=q"], 0)
		require.InDelta(t, 3+4+5+2, got["queen.parked_long_polls queue=other"], 0)
		require.NotContains(t, got, "queen.parked_long_polls queue=hidden")
		require.NotContains(t, got, "queen.parked_long_polls queue=idle")
	})
}
