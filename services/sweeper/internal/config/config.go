package config

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/queenmq/queen/pkg/collector"
	env "github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/hints"
	"github.com/queenmq/queen/pkg/logging"
	"github.com/queenmq/queen/pkg/opsserver"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/rates"
	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/pkg/worker"
	"github.com/queenmq/queen/services/sweeper/internal/timers"
)

// Config is the configuration of a sweeper. Each part is one block of the log at
// start.
type Config struct {
	Process worker.Process
	// The operations port differs from the others', so that all run on one host.
	Ops opsserver.Config `defaults:"QUEEN_OPS_ADDR=:6642"`
	// A probe or a claim, the prune or the rollup, the switches and the metrics take
	// one connection each; the rest is for fires.
	Postgres  pgdb.Config `defaults:"DB_POOL_SIZE=8"`
	Sweeper   Sweeper
	Mesh      hints.Config
	Metrics   collector.Config
	Logging   logging.Config
	Rates     rates.Config
	Telemetry telemetry.Settings

	floors env.Floors
}

// Sweeper is what a sweeper does.
type Sweeper struct {
	// Enabled has timers fired and keys pruned. Off, the process runs and does nothing.
	Enabled bool `envconfig:"QUEEN_SWEEPER" default:"true"`
	Cycle   timers.Config
	// ZstdLevel is how hard the messages of fired timers are compressed.
	ZstdLevel int `envconfig:"QUEEN_V2_ZSTD_LEVEL" default:"3"`
}

// Compression levels.
const (
	minZstdLevel = 1
	maxZstdLevel = 22
)

// Load reads the environment. The error names every problem.
func Load() (*Config, error) {
	c := &Config{}
	if err := env.Load(c); err != nil {
		return nil, err
	}
	c.Process.Identify()
	c.Postgres.ApplicationName = "queen-sweeper"
	c.Sweeper.Cycle.Raise(&c.floors)
	c.floors.Wait("METRICS_FLUSH_MS", &c.Metrics.Flush, collector.FlushFloor)
	c.floors.Wait("QUEEN_LOG_RATES_MS", &c.Rates.Every, rates.EveryFloor)
	return c, nil
}

// Validate checks what no block can check alone.
func (c *Config) Validate() error {
	// A pool that is too small for anything is refused by itself.
	if fires, most := c.Sweeper.Cycle.Parallelism, c.Postgres.PoolSize-1; most > 0 && fires > most {
		return &env.ValueError{
			Name: "QUEEN_SWEEPER_PARALLELISM", Value: strconv.Itoa(fires),
			Allowed: fmt.Sprintf("less than DB_POOL_SIZE (%d), so that probes have a connection,", c.Postgres.PoolSize),
		}
	}
	return nil
}

// Validate checks the bounds beside those of the cycle.
func (s Sweeper) Validate() error {
	return env.Between("QUEEN_V2_ZSTD_LEVEL", s.ZstdLevel, minZstdLevel, maxZstdLevel)
}

// Logger is how the process logs.
func (c *Config) Logger() logging.Config { return c.Logging }

// Show logs the resolved values, one block a subsystem.
func (c *Config) Show(ctx context.Context, log *slog.Logger) {
	env.Show(ctx, log, "server", &c.Process)
	env.Show(ctx, log, "operations", &c.Ops)
	env.Show(ctx, log, "postgres", &c.Postgres, c.Postgres.TrustAttrs()...)
	env.Show(ctx, log, "sweeper", &c.Sweeper)
	env.Show(ctx, log, "mesh", &c.Mesh, slog.Bool(logging.KeyOn, c.Mesh.On()))
	env.Show(ctx, log, "metrics", &c.Metrics)
	env.Show(ctx, log, "logging", &c.Logging)
	env.Show(ctx, log, "rates", &c.Rates)
	env.Show(ctx, log, "telemetry", &c.Telemetry)
}

// Warn logs what looks like a mistake.
func (c *Config) Warn(ctx context.Context, log *slog.Logger) {
	c.Postgres.WarnTrust(ctx, log)
	c.floors.Warn(ctx, log)
	c.Mesh.WarnOpen(ctx, log)
	if lease, statement := c.Sweeper.Cycle.Lease, time.Duration(c.Postgres.StatementTimeout)*time.Millisecond; lease < statement {
		// Nothing is lost or doubled: a fire holds its rows, and looks at the lease first.
		log.WarnContext(ctx, "a claim that takes longer than the lease is in vain, and QUEEN_STMT_TIMEOUT_MS lets it",
			slog.String(logging.KeyVariable, "QUEEN_SWEEPER_LEASE_MS"), slog.Duration(logging.KeyLease, lease), slog.Duration(logging.KeyStatementTimeout, statement))
	}
	env.WarnUnknown(ctx, log, os.Environ(), c)
}
