package config

import (
	"errors"

	env "github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/rates"
)

// Rates is what the log tells at intervals.
type Rates struct {
	rates.Config
	// TopQueues is how many queues have a line of their own, the busiest.
	TopQueues int `envconfig:"QUEEN_LOG_TOPN_QUEUES" default:"10"`
}

const (
	leastTopQueues = 1
	maxTopQueues   = 10_000
)

// Validate checks the upper bounds; what is below a floor is raised to it.
func (r Rates) Validate() error {
	return errors.Join(r.Config.Validate(), env.Between("QUEEN_LOG_TOPN_QUEUES", r.TopQueues, 0, maxTopQueues))
}

func (r *Rates) clamp() {
	r.Every, r.TopQueues = max(r.Every, rates.EveryFloor), max(r.TopQueues, leastTopQueues)
}
