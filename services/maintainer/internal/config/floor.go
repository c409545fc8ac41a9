package config

import (
	"time"

	"github.com/queenmq/queen/pkg/collector"
	"github.com/queenmq/queen/pkg/rates"
)

// Floors. Smaller values are raised to them, as the original system does, so that
// a 0 does not delete everything that has been quiet for a second, nor turn a loop
// into a spin.
const (
	leastInterval      = time.Millisecond
	leastBatch         = 1
	leastDays          = 1
	leastStatsInterval = time.Second
	leastFlush         = collector.FlushFloor
)

func (c *Config) raise() {
	f, r, s, m := &c.floors, &c.Jobs.Retention, &c.Jobs.Stats, &c.Jobs.Metrics
	f.Wait("RETENTION_INTERVAL", &r.Interval, leastInterval)
	f.Count("RETENTION_BATCH_SIZE", &r.BatchSize, leastBatch)
	f.Count("PARTITION_CLEANUP_DAYS", &r.CleanupDays, leastDays)
	f.Count("METRICS_RETENTION_DAYS", &r.MetricsDays, leastDays)
	f.Wait("STATS_INTERVAL_MS", &s.Interval, leastStatsInterval)
	f.Wait("RETAINED_BYTES_INTERVAL_MS", &s.RetainedBytesInterval, leastStatsInterval)
	f.Wait("METRICS_FLUSH_MS", &m.Flush, leastFlush)
	f.Wait("QUEEN_LOG_RATES_MS", &c.Rates.Every, rates.EveryFloor)
}
