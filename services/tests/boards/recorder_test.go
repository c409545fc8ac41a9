package boards_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/stretchr/testify/require"
)

// every is the interval of scrapes: shorter than usual, for tests to be short.
const every = time.Second

// target is what is scraped.
type target struct{ job, instance, url string }

// recorder is a Prometheus server: it scrapes targets into its storage and evaluates
// expressions over it.
type recorder struct {
	t      testing.TB
	db     *tsdb.DB
	engine *promql.Engine

	mu      sync.Mutex
	targets []target
	seen    map[target]map[string]labels.Labels // series of the last scrape
	stop    context.CancelFunc
	done    chan struct{}
}

func newRecorder(t testing.TB, targets ...target) *recorder {
	t.Helper()
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 0
	db, err := tsdb.Open(t.TempDir(), nil, nil, opts, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{
		t: t, db: db, targets: targets, seen: map[target]map[string]labels.Labels{}, stop: cancel, done: make(chan struct{}),
		engine: promql.NewEngine(promql.EngineOpts{
			MaxSamples: 1_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true,
		}),
	}
	go r.run(ctx)
	t.Cleanup(func() {
		cancel()
		<-r.done
		require.NoError(t, r.engine.Close())
		require.NoError(t, db.Close())
	})
	return r
}

func (r *recorder) run(ctx context.Context) {
	defer close(r.done)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		r.scrape(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// scrape reads every target once. What a target does not show any more becomes stale,
// all of it when it does not answer.
func (r *recorder) scrape(ctx context.Context) {
	r.mu.Lock()
	targets := slices.Clone(r.targets)
	r.mu.Unlock()
	for _, from := range targets {
		at := time.Now()
		text, kind, err := fetch(ctx, from.url)
		if ctx.Err() != nil {
			return
		}
		app := r.db.Appender(ctx)
		fresh := map[string]labels.Labels{}
		up := 1.0
		if err != nil {
			up = 0
		} else if err := r.parse(app, from, text, kind, at, fresh); err != nil {
			r.t.Errorf("scrape %s: %v", from.url, err)
		}
		r.mu.Lock()
		for key, old := range r.seen[from] {
			if _, still := fresh[key]; !still {
				_, _ = app.Append(0, old, at.UnixMilli(), math.Float64frombits(value.StaleNaN))
			}
		}
		r.seen[from] = fresh
		r.mu.Unlock()
		_, err = app.Append(0, labels.FromStrings(model.MetricNameLabel, "up", "job", from.job, "instance", from.instance), at.UnixMilli(), up)
		if err := errors.Join(err, app.Commit()); err != nil {
			r.t.Errorf("keep the samples of %s: %v", from.url, err)
		}
	}
}

func (r *recorder) parse(app storage.Appender, from target, text []byte, kind string, at time.Time, fresh map[string]labels.Labels) error {
	p, err := textparse.New(text, kind, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return fmt.Errorf("choose a parser: %w", err)
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		p.Labels(&series)
		_, _, v := p.Series()
		b := labels.NewBuilder(series)
		b.Set("job", from.job)
		b.Set("instance", from.instance)
		series = b.Labels()
		fresh[series.String()] = series
		if _, err := app.Append(0, series, at.UnixMilli(), v); err != nil {
			return fmt.Errorf("append %s: %w", series, err)
		}
	}
}

func fetch(ctx context.Context, url string) (text []byte, kind string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, "", fmt.Errorf("make a request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", fmt.Errorf("scrape: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("scrape: status %d", resp.StatusCode)
	}
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return nil, "", fmt.Errorf("scrape: %w", err)
	}
	return text, resp.Header.Get("Content-Type"), nil
}

// ask evaluates an expression now.
func (r *recorder) ask(expr string) promql.Vector {
	r.t.Helper()
	q, err := r.engine.NewInstantQuery(r.t.Context(), r.db, nil, expr, time.Now())
	require.NoError(r.t, err, expr)
	defer q.Close()
	result := q.Exec(r.t.Context())
	require.NoError(r.t, result.Err, expr)
	require.Empty(r.t, result.Warnings, expr)
	v, err := result.Vector()
	require.NoError(r.t, err, expr)
	return append(promql.Vector(nil), v...)
}

// watch adds a target.
func (r *recorder) watch(more target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = append(r.targets, more)
}

// metricNames are the names that were seen of all targets.
func (r *recorder) metricNames() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := map[string]bool{}
	for _, of := range r.seen {
		for _, series := range of {
			names[series.Get(model.MetricNameLabel)] = true
		}
	}
	return names
}
