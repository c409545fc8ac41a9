package collector

import (
	"time"

	"github.com/queenmq/queen/pkg/config"
)

const (
	// FlushDefault is the usual time between two flushes.
	FlushDefault = time.Minute
	// FlushFloor is the least: a smaller value is raised to it.
	FlushFloor = time.Second
	flushMax   = 24 * time.Hour
)

// Config says how often a process writes what it has counted.
type Config struct {
	// Flush is the time between two flushes, at least FlushFloor.
	Flush time.Duration `envconfig:"METRICS_FLUSH_MS" default:"60000"`
}

// Validate checks the upper bound; what is below the floor is raised to it.
func (c Config) Validate() error {
	return config.MillisBetween("METRICS_FLUSH_MS", c.Flush, 0, flushMax)
}

// interval is the time between two flushes in effect.
func (c Config) interval() time.Duration { return max(c.Flush, FlushFloor) }
