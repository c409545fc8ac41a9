package collector

import (
	"errors"
	"time"

	"github.com/queenmq/queen/pkg/config"
)

const (
	// FlushDefault is the usual time between two flushes.
	FlushDefault = time.Minute
	// FlushFloor is the least: a smaller value is raised to it.
	FlushFloor = time.Second
	flushMax   = 24 * time.Hour
	// QueuesMax is the largest number of queues that may have series of their own. At
	// more than a few thousand a scrape is slow and large.
	QueuesMax = 100_000
)

// Config says how often a process writes what it has counted, and how much of it it
// shows.
type Config struct {
	// Flush is the time between two flushes, at least FlushFloor.
	Flush time.Duration `envconfig:"METRICS_FLUSH_MS" default:"60000"`
	// MaxQueues is how many queues have series of their own in what is scraped; the
	// others are one, named other.
	MaxQueues int `envconfig:"QUEEN_METRICS_MAX_QUEUES" default:"1000"`
}

// Validate checks the bounds; a time below its floor is raised to it.
func (c Config) Validate() error {
	return errors.Join(
		config.MillisBetween("METRICS_FLUSH_MS", c.Flush, 0, flushMax),
		config.Between("QUEEN_METRICS_MAX_QUEUES", c.MaxQueues, 0, QueuesMax),
	)
}

// interval is the time between two flushes in effect.
func (c Config) interval() time.Duration { return max(c.Flush, FlushFloor) }
