package app

import (
	"fmt"
	"log/slog"

	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/services/maintainer/internal/retention"
	"github.com/queenmq/queen/services/maintainer/internal/stats"
	"github.com/queenmq/queen/services/maintainer/internal/watch"
)

// jobs are what a maintainer does.
type jobs struct {
	retention *retention.Retention
	stats     *stats.Reconciler
	watch     *watch.Watch
}

// newJobs builds the jobs. Nothing runs yet.
func (a *App) newJobs() (*jobs, error) {
	st, j, cfg := a.Store(), &jobs{}, a.cfg.Jobs
	var err error
	j.retention, err = retention.New(retention.Config{
		Interval: cfg.Retention.Interval, BatchSize: cfg.Retention.BatchSize,
		Cleanup: cfg.Retention.Cleanup, CleanupAge: cfg.Retention.CleanupAge(), MetricsAge: cfg.Retention.MetricsAge(),
	}, retention.Deps{Store: st, Log: a.log.With(slog.String(logging.KeyComponent, "retention")), Meter: a.Meter("retention"), Tracers: a.Tracers()})
	if err != nil {
		return nil, fmt.Errorf("build retention: %w", err)
	}
	j.stats, err = stats.New(stats.Config{
		Interval: cfg.Stats.Interval, RetainedBytesInterval: cfg.Stats.RetainedBytesInterval,
	}, stats.Deps{Store: st, Log: a.log, Meter: a.Meter("stats")})
	if err != nil {
		return nil, fmt.Errorf("build the stats reconciler: %w", err)
	}
	j.watch, err = watch.New(watch.Config{MaxQueues: cfg.Metrics.MaxQueues}, watch.Deps{Store: st, Log: a.log, Meter: a.Meter("watch")})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// components are the jobs as parts of the process.
func (j *jobs) components() []lifecycle.Component {
	return []lifecycle.Component{
		{Name: "stats", Run: j.stats.Run},
		{Name: "retention", Run: j.retention.Run},
		{Name: "watch", Run: j.watch.Run},
	}
}
