package app

import (
	"fmt"

	"github.com/queenmq/queen/pkg/telemetry"
	"github.com/queenmq/queen/services/broker/internal/config"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

// timersEdge checks operations on timers, wherever they come from.
func timersEdge(cfg *config.Config, quotas *quota.Keeper) *timers.Edge {
	return timers.NewEdge(timers.Config{MaxPayloadBytes: cfg.Timers.MaxPayloadBytes, MaxOps: cfg.Timers.MaxOps}, quotas, mint.NewSource())
}

// newTimers builds the service of timers, with the connections and the quotas of keys.
func newTimers(k *keys, announcer timers.Announcer, tel *telemetry.Telemetry) (*timers.Service, error) {
	s, err := timers.New(timers.Deps{
		Store: k.store, Edge: k.edge, Quota: k.quotas, Announcer: announcer, Meter: tel.Meters.Meter(serviceName + "/timers"),
	})
	if err != nil {
		return nil, fmt.Errorf("build the service of timers: %w", err)
	}
	return s, nil
}
