package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
)

// Config is the load and where it goes.
type Config struct {
	// URLs are base addresses. A request goes to the next one, and after an error to
	// the one after it.
	URLs  []string
	Queue string // its name; a run needs one of its own

	For   time.Duration // how long messages are pushed
	Lanes int
	Rate  float64 // messages per second; 0: as fast as they are answered

	Pushers   int
	Groups    int
	Consumers int // of each group
	Batch     int // messages of a pop at most
	Claim     int // lanes of a pop at most
	Lease     time.Duration
	Poll      time.Duration // how long a pop waits

	// Timers schedules a message for each lane, which needs a sweeper.
	Timers bool
	// Counters is how many clients increment one key; 0 leaves it alone.
	Counters int

	// Keep leaves queues and key behind also when the verdict is good.
	Keep bool

	// Patience is how long a request is repeated, and how long the end may be waited for
	// without progress.
	Patience time.Duration
	// Renew is how often idle connections are given up, so that brokers that have come
	// since get some; 0: never.
	Renew time.Duration
	// Dial opens connections, where not the system does.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Progress is told every few seconds how far it is; nil: nobody is.
	Progress func(Verdict)
}

// Default is the load of the command without flags.
func Default() Config {
	return Config{
		For: time.Minute, Lanes: 200, Rate: 1000, Pushers: 64, Groups: 1, Consumers: 8, Batch: 100, Claim: 8,
		Lease: 10 * time.Second, Poll: 2 * time.Second, Timers: true, Counters: 2, Patience: time.Minute, Renew: 10 * time.Second,
	}
}

// What a load may be at most: one process has to keep up with it.
const (
	maxLanes   = 100_000
	maxClients = 10_000
	maxBatch   = 10_000
	maxTime    = 7 * 24 * time.Hour
)

// Validate names what cannot be run.
func (c *Config) Validate() error {
	problems := []error{
		between("lanes", c.Lanes, 1, maxLanes), between("pushers", c.Pushers, 1, maxClients), between("groups", c.Groups, 1, maxClients),
		between("consumers", c.Consumers, 1, maxClients), between("batch", c.Batch, 1, maxBatch), between("claim", c.Claim, 1, maxBatch),
		between("counters", c.Counters, 0, maxClients), between("for", c.For, time.Millisecond, maxTime),
		between("lease", c.Lease, time.Second, time.Hour), between("poll", c.Poll, 0, time.Minute),
		between("patience", c.Patience, time.Second, maxTime), between("renew", c.Renew, 0, maxTime), between("rate", c.Rate, 0, 1e6),
	}
	if len(c.URLs) == 0 {
		problems = append(problems, errors.New("urls: at least one is needed"))
	}
	for i, text := range c.URLs {
		c.URLs[i] = strings.TrimRight(text, "/")
		if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			problems = append(problems, fmt.Errorf("urls: %q: http://host:port is allowed", text))
		}
	}
	if c.Queue == "" {
		problems = append(problems, errors.New("queue: a name is needed"))
	}
	if c.Patience <= c.Lease {
		problems = append(problems, fmt.Errorf("patience=%v: more than the lease (%v) is allowed, which a lost answer takes", c.Patience, c.Lease))
	}
	return errors.Join(problems...)
}

func between[T int | float64 | time.Duration](name string, value, low, high T) error {
	if value < low || value > high {
		return fmt.Errorf("%s=%v: %v to %v is allowed", name, value, low, high)
	}
	return nil
}
