package config

import (
	"errors"
	"time"

	env "github.com/queenmq/queen/pkg/config"
)

// Timers are the limits of what is delivered later.
type Timers struct {
	// MaxPayloadBytes bounds the payload of a timer, counted after base64.
	MaxPayloadBytes int `envconfig:"QUEEN_TIMERS_MAX_PAYLOAD_BYTES" default:"1048576"`
	// MaxHorizonS is how far ahead timers may be scheduled, in seconds: 90 days. The
	// quota of a tenant can only narrow it.
	MaxHorizonS int `envconfig:"QUEEN_TIMERS_MAX_HORIZON_S" default:"7776000"`
	// MaxOps bounds the operations of one call.
	MaxOps int `envconfig:"QUEEN_TIMERS_MAX_OPS_PER_CALL" default:"256"`
}

const (
	// maxTimerPayload is what one message can have by the usual limit of a body.
	maxTimerPayload = 64 << 20
	// maxHorizonS is a century, of which all arithmetic is capable.
	maxHorizonS = 100 * 365 * 24 * 60 * 60
	// maxTimerOps keeps a call short: the database compares each with all before it.
	maxTimerOps = 1024
)

// Horizon is how far ahead timers may be scheduled.
func (t Timers) Horizon() time.Duration { return time.Duration(t.MaxHorizonS) * time.Second }

// Validate checks the bounds of timers.
func (t Timers) Validate() error {
	return errors.Join(
		env.Between("QUEEN_TIMERS_MAX_PAYLOAD_BYTES", t.MaxPayloadBytes, 1, maxTimerPayload),
		env.Between("QUEEN_TIMERS_MAX_HORIZON_S", t.MaxHorizonS, 1, maxHorizonS),
		env.Between("QUEEN_TIMERS_MAX_OPS_PER_CALL", t.MaxOps, 1, maxTimerOps),
	)
}
