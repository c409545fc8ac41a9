package pop

import (
	"cmp"
	"time"
)

// Config holds the settings of a Service. Zero values take the defaults, which
// are those of POP_WAIT_* in the documentation.
type Config struct {
	// InitialInterval is the first interval between the re-checks that all pops
	// parked on one topic share (100 ms).
	InitialInterval time.Duration
	// BackoffThreshold is the number of fruitless waits before it grows (3).
	BackoffThreshold int
	// BackoffMultiplier is the factor of its growth (2.0).
	BackoffMultiplier float64
	// MaxInterval is where the growth ends (1 s).
	MaxInterval time.Duration
	// PendingGate puts the cheap pending probe before the re-checks of the
	// single-partition and discovery routes; wildcard pops always have it.
	PendingGate bool
	// MaxParked is the number of pops that may wait at once (20000).
	MaxParked int
	// SegmentCache is the memory, in bytes, for segments of which only a part was
	// delivered (32 MiB). Negative: none.
	SegmentCache int64
	// SettingsAge is how old a remembered minPopWaitTime may be (30 s).
	SettingsAge time.Duration
}

// Defaults of Config.
const (
	InitialIntervalDefault   = 100 * time.Millisecond
	BackoffThresholdDefault  = 3
	BackoffMultiplierDefault = 2.0
	MaxIntervalDefault       = time.Second
	MaxParkedDefault         = 20_000
	SegmentCacheDefault      = 32 << 20
	SettingsAgeDefault       = 30 * time.Second
)

func (c Config) withDefaults() Config {
	c.InitialInterval = cmp.Or(c.InitialInterval, InitialIntervalDefault)
	c.BackoffThreshold = cmp.Or(c.BackoffThreshold, BackoffThresholdDefault)
	c.BackoffMultiplier = cmp.Or(c.BackoffMultiplier, BackoffMultiplierDefault)
	c.MaxInterval = cmp.Or(c.MaxInterval, MaxIntervalDefault)
	c.MaxParked = cmp.Or(c.MaxParked, MaxParkedDefault)
	c.SegmentCache = cmp.Or(c.SegmentCache, SegmentCacheDefault)
	c.SettingsAge = cmp.Or(c.SettingsAge, SettingsAgeDefault)
	return c
}

// interval is the wait before the next re-check after n fruitless waits.
func (c Config) interval(n int) time.Duration {
	if n < c.BackoffThreshold {
		return min(c.InitialInterval, c.MaxInterval)
	}
	grown := float64(c.InitialInterval) * float64(n+1) * c.BackoffMultiplier
	return time.Duration(min(grown, float64(c.MaxInterval)))
}

// Some clients give a request the very 30 s that they ask the broker to wait; an
// answer a little earlier saves them a broken connection.
const (
	longPoll   = 20 * time.Second
	earlyReply = 250 * time.Millisecond
)

func (c Config) patience(timeout time.Duration) time.Duration {
	if timeout >= longPoll {
		return timeout - earlyReply
	}
	return timeout
}
