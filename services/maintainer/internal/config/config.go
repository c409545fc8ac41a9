package config

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/queenmq/queen/pkg/collector"
	env "github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/rates"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/worker"
)

// Config is the configuration of a maintainer. Each part is one block of the log
// at start.
type Config struct {
	Process worker.Process
	// The operations port differs from the broker's, so that both run on one host.
	Ops opsserver.Config `defaults:"QUEEN_OPS_ADDR=:6641"`
	// A maintainer works on few connections: the stats, the metrics, a probe, and
	// one to spare. The leader's own is not of the pool.
	Postgres  pgdb.Config `defaults:"DB_POOL_SIZE=4"`
	Jobs      Jobs
	Logging   logging.Config
	Rates     rates.Config
	Telemetry telemetry.Settings

	floors env.Floors
}

// Jobs is what a maintainer does.
type Jobs struct {
	Retention Retention
	Stats     Stats
	Metrics   collector.Config // what this process writes about itself
}

// Retention is the cycle that deletes what policy lets go.
type Retention struct {
	// Interval is the time from the start of a cycle to the start of the next.
	Interval time.Duration `envconfig:"RETENTION_INTERVAL" default:"5000"`
	// BatchSize is the most rows of one step, which is one transaction.
	BatchSize int `envconfig:"RETENTION_BATCH_SIZE" default:"1000"`
	// Parallelism is accepted without effect: steps never overlap.
	Parallelism int `envconfig:"RETENTION_PARALLELISM" default:"1"`
	// Cleanup removes partitions that are empty and unused for CleanupDays.
	Cleanup     bool `envconfig:"QUEEN_PARTITION_CLEANUP_ENABLED" default:"true"`
	CleanupDays int  `envconfig:"PARTITION_CLEANUP_DAYS" default:"30"`
	// MetricsDays is how long metrics and the history of deletions are kept.
	MetricsDays int `envconfig:"METRICS_RETENTION_DAYS" default:"90"`
}

// Stats is the upkeep of the statistics.
type Stats struct {
	Interval time.Duration `envconfig:"STATS_INTERVAL_MS" default:"10000"`
	// RetainedBytesInterval is for the one figure that needs a look at the segments.
	RetainedBytesInterval time.Duration `envconfig:"RETAINED_BYTES_INTERVAL_MS" default:"600000"`
}

const (
	day     = 24 * time.Hour
	maxWait = day

	// maxBatch bounds how long one step keeps a partition locked.
	maxBatch = 10000
	maxDays  = 36500
)

// Load reads the environment. The error names every problem.
func Load() (*Config, error) {
	c := &Config{}
	if err := env.Load(c); err != nil {
		return nil, err
	}
	c.Process.Identify()
	c.Postgres.ApplicationName = "queen-maintainer"
	c.raise()
	return c, nil
}

// Validate checks the upper bounds; what is below a floor is raised to it.
func (r Retention) Validate() error {
	return errors.Join(
		env.MillisBetween("RETENTION_INTERVAL", r.Interval, 0, maxWait),
		env.Between("RETENTION_BATCH_SIZE", r.BatchSize, 0, maxBatch),
		env.Between("PARTITION_CLEANUP_DAYS", r.CleanupDays, 0, maxDays),
		env.Between("METRICS_RETENTION_DAYS", r.MetricsDays, 0, maxDays),
	)
}

// Validate checks the upper bounds.
func (s Stats) Validate() error {
	return errors.Join(
		env.MillisBetween("STATS_INTERVAL_MS", s.Interval, 0, maxWait),
		env.MillisBetween("RETAINED_BYTES_INTERVAL_MS", s.RetainedBytesInterval, 0, maxWait),
	)
}

// CleanupAge is how long a partition has to be unused before it is removed.
func (r Retention) CleanupAge() time.Duration { return time.Duration(r.CleanupDays) * day }

// MetricsAge is how long metrics are kept.
func (r Retention) MetricsAge() time.Duration { return time.Duration(r.MetricsDays) * day }

// Logger is how the process logs.
func (c *Config) Logger() logging.Config { return c.Logging }

// Show logs the resolved values, one block a subsystem.
func (c *Config) Show(ctx context.Context, log *slog.Logger) {
	env.Show(ctx, log, "server", &c.Process)
	env.Show(ctx, log, "operations", &c.Ops)
	env.Show(ctx, log, "postgres", &c.Postgres, c.Postgres.TrustAttrs()...)
	env.Show(ctx, log, "jobs", &c.Jobs)
	env.Show(ctx, log, "logging", &c.Logging)
	env.Show(ctx, log, "rates", &c.Rates)
	env.Show(ctx, log, "telemetry", &c.Telemetry)
}

// Warn logs what looks like a mistake.
func (c *Config) Warn(ctx context.Context, log *slog.Logger) {
	c.Postgres.WarnTrust(ctx, log)
	c.floors.Warn(ctx, log)
	if c.Jobs.Retention.Parallelism != 1 {
		log.WarnContext(ctx, "retention makes one step at a time whatever this variable says",
			slog.String(logging.KeyVariable, "RETENTION_PARALLELISM"))
	}
	env.WarnUnknown(ctx, log, os.Environ(), c)
}
