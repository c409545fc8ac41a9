package app

import (
	"fmt"
	"log/slog"
	"os"

	"go.opentelemetry.io/otel/metric"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
	"github.com/queenmq/queen/services/maintainer/internal/stats"
)

// jobs are what a maintainer does.
type jobs struct {
	retention *retention.Retention
	stats     *stats.Reconciler
	metrics   *collector.Collector
}

// newJobs builds the jobs. Nothing runs yet.
func (a *App) newJobs() (*jobs, error) {
	st, j := store.New(a.db.DB), &jobs{}
	cfg := a.cfg.Jobs
	var err error
	j.retention, err = retention.New(retention.Config{
		Interval: cfg.Retention.Interval, BatchSize: cfg.Retention.BatchSize,
		Cleanup: cfg.Retention.Cleanup, CleanupAge: cfg.Retention.CleanupAge(), MetricsAge: cfg.Retention.MetricsAge(),
	}, retention.Deps{Store: st, Log: a.log.With(slog.String(logging.KeyComponent, "retention")), Meter: a.meter("retention"), Tracers: a.tel.Tracers})
	if err != nil {
		return nil, fmt.Errorf("build retention: %w", err)
	}
	j.stats, err = stats.New(stats.Config{
		Interval: cfg.Stats.Interval, RetainedBytesInterval: cfg.Stats.RetainedBytesInterval,
	}, stats.Deps{Store: st, Log: a.log, Meter: a.meter("stats")})
	if err != nil {
		return nil, fmt.Errorf("build the stats reconciler: %w", err)
	}
	j.metrics, err = collector.New(cfg.Metrics, collector.Deps{
		Store: st, Pool: a.db.Stat, Log: a.log, Meter: a.meter("collector"),
		Replica: store.Replica{Service: "maintainer", Host: a.cfg.Process.ServerID, PID: os.Getpid()},
	})
	if err != nil {
		return nil, fmt.Errorf("build the metrics collector: %w", err)
	}
	return j, nil
}

func (a *App) meter(part string) metric.Meter { return a.tel.Meters.Meter(serviceName + "/" + part) }

// addTo makes the jobs parts of the process. Metrics stop last, to tell of the rest.
func (j *jobs) addTo(g *lifecycle.Group) {
	g.Add(lifecycle.Component{Name: "metrics", Run: j.metrics.Run})
	g.Add(lifecycle.Component{Name: "stats", Run: j.stats.Run})
	g.Add(lifecycle.Component{Name: "retention", Run: j.retention.Run})
}
