package config

import (
	"time"

	"github.com/queenmq/queen/pkg/collector"
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

// raised is a value that was below its floor, in the unit of its variable.
type raised struct {
	name                 string
	requested, effective int64
}

func (c *Config) raise() {
	r, s, m := &c.Jobs.Retention, &c.Jobs.Stats, &c.Jobs.Metrics
	c.raiseWait("RETENTION_INTERVAL", &r.Interval, leastInterval)
	c.raiseCount("RETENTION_BATCH_SIZE", &r.BatchSize, leastBatch)
	c.raiseCount("PARTITION_CLEANUP_DAYS", &r.CleanupDays, leastDays)
	c.raiseCount("METRICS_RETENTION_DAYS", &r.MetricsDays, leastDays)
	c.raiseWait("STATS_INTERVAL_MS", &s.Interval, leastStatsInterval)
	c.raiseWait("RETAINED_BYTES_INTERVAL_MS", &s.RetainedBytesInterval, leastStatsInterval)
	c.raiseWait("METRICS_FLUSH_MS", &m.Flush, leastFlush)
}

func (c *Config) raiseCount(name string, value *int, least int) {
	if *value < least {
		c.raised = append(c.raised, raised{name, int64(*value), int64(least)})
		*value = least
	}
}

func (c *Config) raiseWait(name string, value *time.Duration, least time.Duration) {
	if *value < least {
		c.raised = append(c.raised, raised{name, value.Milliseconds(), least.Milliseconds()})
		*value = least
	}
}
