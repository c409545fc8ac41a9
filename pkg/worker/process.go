package worker

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/queenmq/queen/pkg/config"
)

// Process is the life of the process.
type Process struct {
	// ServerID is the name of this instance in logs and metrics; HOSTNAME, then a
	// random one, stand in.
	ServerID   string        `envconfig:"QUEEN_SERVER_ID" alias:"HOSTNAME"`
	BootDBWait time.Duration `envconfig:"QUEEN_BOOT_DB_WAIT_MS" default:"60000"`
	// ShutdownTimeout bounds a stop, from the signal to the end of the process.
	ShutdownTimeout time.Duration `envconfig:"QUEEN_SHUTDOWN_TIMEOUT_MS" default:"25000"`
}

const maxWait = 24 * time.Hour

// Validate checks the bounds of the process.
func (p Process) Validate() error {
	return errors.Join(
		config.MillisBetween("QUEEN_BOOT_DB_WAIT_MS", p.BootDBWait, 0, maxWait),
		config.MillisBetween("QUEEN_SHUTDOWN_TIMEOUT_MS", p.ShutdownTimeout, time.Millisecond, maxWait),
	)
}

// idDigits are enough to tell the replicas of a service apart.
const idDigits = 8

// Identify gives an instance without a name a random one.
func (p *Process) Identify() {
	if p.ServerID == "" {
		p.ServerID = "queen-" + uuid.NewString()[:idDigits]
	}
}
