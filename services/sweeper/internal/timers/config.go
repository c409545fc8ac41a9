package timers

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/queenmq/queen/pkg/config"
)

// Floors. Smaller values are raised to them: a sleep of 0 would be a busy wait that
// holds a connection.
const (
	SleepFloor = time.Millisecond
	UsageFloor = time.Second
	// LeaseFloor leaves a claim the time to be fired.
	LeaseFloor = 100 * time.Millisecond
	countFloor = 1
)

// Upper bounds of the settings.
const (
	waitMax = 24 * time.Hour
	// ParallelismMax bounds the fires at the same time: each is a connection that
	// writes, and holds the lanes of its segments against pushes.
	ParallelismMax = 16
	rowsMax        = 100_000
	attemptsMax    = 1000
	// fireBytesMax is far below what one value of PostgreSQL may hold.
	fireBytesMax = 256 << 20
)

// Config tunes the cycle. The tags are read by pkg/config.
type Config struct {
	// MinSleep is the pause between two cycles while there is work.
	MinSleep time.Duration `envconfig:"QUEEN_SWEEPER_MIN_SLEEP_MS" default:"5"`
	// MaxSleep is the longest time between two probes, idle or not: how late a timer is
	// of which no hint arrived.
	MaxSleep time.Duration `envconfig:"QUEEN_SWEEPER_MAX_SLEEP_MS" default:"1000"`
	// IdleMaxSleep is how far the time between two prunes, or two rollups, is doubled
	// once both tables were empty for IdleAfterCycles cycles.
	IdleMaxSleep    time.Duration `envconfig:"QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS" default:"30000"`
	IdleAfterCycles int           `envconfig:"QUEEN_SWEEPER_IDLE_AFTER_CYCLES" default:"5"`
	// EmptyClaimMin and EmptyClaimMax are the band of the pause after a claim that took
	// nothing although timers were due: somebody else is at it.
	EmptyClaimMin time.Duration `envconfig:"QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS" default:"25"`
	EmptyClaimMax time.Duration `envconfig:"QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS" default:"200"`
	// Lease is how long a claimed timer is this sweeper's own. Claiming stops after half
	// of it.
	Lease time.Duration `envconfig:"QUEEN_SWEEPER_LEASE_MS" default:"30000"`
	// ClaimBatch and CycleMaxRows are how many timers a claim and a cycle take at most,
	// DueCap is up to where a probe counts.
	ClaimBatch   int `envconfig:"QUEEN_SWEEPER_CLAIM_BATCH" default:"200"`
	CycleMaxRows int `envconfig:"QUEEN_SWEEPER_CYCLE_MAX_ROWS" default:"5000"`
	DueCap       int `envconfig:"QUEEN_SWEEPER_DUE_CAP" default:"2000"`
	// MaxFireBytes bounds the frames of one fire, which is one transaction. A timer
	// that is larger goes alone.
	MaxFireBytes int64 `envconfig:"QUEEN_SWEEPER_MAX_FIRE_BYTES" default:"8388608"`
	// Parallelism is how many fires run at the same time.
	Parallelism int `envconfig:"QUEEN_SWEEPER_PARALLELISM" default:"1"`
	// MaxAttempts is after how many permanent failures a timer is dead-lettered.
	MaxAttempts int `envconfig:"QUEEN_SWEEPER_MAX_ATTEMPTS" default:"5"`
	// BackoffMin and BackoffMax are the band of the pause after a permanent failure,
	// TransientBackoff is the pause after one that says nothing about the timer.
	BackoffMin       time.Duration `envconfig:"QUEEN_SWEEPER_BACKOFF_MIN_MS" default:"1000"`
	BackoffMax       time.Duration `envconfig:"QUEEN_SWEEPER_BACKOFF_MAX_MS" default:"60000"`
	TransientBackoff time.Duration `envconfig:"QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS" default:"1000"`
	// IsolateOnPermanent repeats a fire that failed for good piece by piece, so that
	// only the timers that cannot be fired pay for it.
	IsolateOnPermanent bool `envconfig:"QUEEN_SWEEPER_ISOLATE_ON_PERMANENT" default:"true"`
	// FireRatePerTenant is how many timers of one tenant a claim takes from one shard. It
	// changes nothing where it is not below the share of a shard: 8, and for claims of more
	// than 512 a 64th of them.
	FireRatePerTenant int `envconfig:"QUEEN_SWEEPER_FIRE_RATE_PER_TENANT" default:"50"`
	// ExpireEvery is the time between two prunes of expired keys, ExpireBatch the rows of
	// one call, UsageEvery the time between two measurements of what tenants use.
	ExpireEvery time.Duration `envconfig:"QUEEN_KV_EXPIRE_EVERY_MS" default:"1000"`
	ExpireBatch int           `envconfig:"QUEEN_KV_EXPIRE_BATCH" default:"1000"`
	UsageEvery  time.Duration `envconfig:"QUEEN_KV_USAGE_EVERY_MS" default:"300000"`
}

// Defaults is the configuration of an empty environment.
func Defaults() Config {
	return Config{
		MinSleep: 5 * time.Millisecond, MaxSleep: time.Second, IdleMaxSleep: 30 * time.Second, IdleAfterCycles: 5,
		EmptyClaimMin: 25 * time.Millisecond, EmptyClaimMax: 200 * time.Millisecond, Lease: 30 * time.Second,
		ClaimBatch: 200, CycleMaxRows: 5000, DueCap: 2000, MaxFireBytes: 8 << 20, Parallelism: 1, MaxAttempts: 5,
		BackoffMin: time.Second, BackoffMax: time.Minute, TransientBackoff: time.Second, IsolateOnPermanent: true,
		FireRatePerTenant: 50, ExpireEvery: time.Second, ExpireBatch: 1000, UsageEvery: 5 * time.Minute,
	}
}

// Validate checks the upper bounds, and that no band ends before it begins. What is
// below a floor is raised to it.
func (c Config) Validate() error {
	c = c.Raised()
	return errors.Join(
		config.MillisBetween("QUEEN_SWEEPER_MIN_SLEEP_MS", c.MinSleep, SleepFloor, waitMax),
		config.MillisBetween("QUEEN_SWEEPER_MAX_SLEEP_MS", c.MaxSleep, SleepFloor, waitMax),
		config.MillisBetween("QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS", c.IdleMaxSleep, SleepFloor, waitMax),
		config.Between("QUEEN_SWEEPER_IDLE_AFTER_CYCLES", c.IdleAfterCycles, countFloor, rowsMax),
		config.MillisBetween("QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS", c.EmptyClaimMin, SleepFloor, waitMax),
		config.MillisBetween("QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS", c.EmptyClaimMax, SleepFloor, waitMax),
		config.MillisBetween("QUEEN_SWEEPER_LEASE_MS", c.Lease, LeaseFloor, waitMax),
		config.Between("QUEEN_SWEEPER_CLAIM_BATCH", c.ClaimBatch, countFloor, rowsMax),
		config.Between("QUEEN_SWEEPER_CYCLE_MAX_ROWS", c.CycleMaxRows, countFloor, rowsMax),
		config.Between("QUEEN_SWEEPER_DUE_CAP", c.DueCap, countFloor, rowsMax),
		config.Between("QUEEN_SWEEPER_MAX_FIRE_BYTES", c.MaxFireBytes, countFloor, fireBytesMax),
		config.Between("QUEEN_SWEEPER_PARALLELISM", c.Parallelism, countFloor, ParallelismMax),
		config.Between("QUEEN_SWEEPER_MAX_ATTEMPTS", c.MaxAttempts, countFloor, attemptsMax),
		config.MillisBetween("QUEEN_SWEEPER_BACKOFF_MIN_MS", c.BackoffMin, SleepFloor, waitMax),
		config.MillisBetween("QUEEN_SWEEPER_BACKOFF_MAX_MS", c.BackoffMax, SleepFloor, waitMax),
		config.MillisBetween("QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS", c.TransientBackoff, SleepFloor, waitMax),
		config.Between("QUEEN_SWEEPER_FIRE_RATE_PER_TENANT", c.FireRatePerTenant, countFloor, rowsMax),
		config.MillisBetween("QUEEN_KV_EXPIRE_EVERY_MS", c.ExpireEvery, SleepFloor, waitMax),
		config.Between("QUEEN_KV_EXPIRE_BATCH", c.ExpireBatch, countFloor, rowsMax),
		config.MillisBetween("QUEEN_KV_USAGE_EVERY_MS", c.UsageEvery, UsageFloor, waitMax),
		c.bands(),
	)
}

// bands checks that what belongs together is in order.
func (c Config) bands() error {
	return errors.Join(
		atMost("QUEEN_SWEEPER_MIN_SLEEP_MS", c.MinSleep, "QUEEN_SWEEPER_MAX_SLEEP_MS", c.MaxSleep),
		atMost("QUEEN_SWEEPER_MAX_SLEEP_MS", c.MaxSleep, "QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS", c.IdleMaxSleep),
		atMost("QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS", c.EmptyClaimMin, "QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS", c.EmptyClaimMax),
		atMost("QUEEN_SWEEPER_BACKOFF_MIN_MS", c.BackoffMin, "QUEEN_SWEEPER_BACKOFF_MAX_MS", c.BackoffMax),
	)
}

// atMost checks a duration against that of another variable.
func atMost(name string, value time.Duration, other string, limit time.Duration) error {
	if value <= limit {
		return nil
	}
	return &config.ValueError{
		Name: name, Value: strconv.FormatInt(value.Milliseconds(), 10),
		Allowed: fmt.Sprintf("at most %s (%d)", other, limit.Milliseconds()),
	}
}

// Raise raises what is below a floor to it.
func (c *Config) Raise(f *config.Floors) {
	f.Wait("QUEEN_SWEEPER_MIN_SLEEP_MS", &c.MinSleep, SleepFloor)
	f.Wait("QUEEN_SWEEPER_MAX_SLEEP_MS", &c.MaxSleep, SleepFloor)
	f.Wait("QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS", &c.IdleMaxSleep, SleepFloor)
	f.Count("QUEEN_SWEEPER_IDLE_AFTER_CYCLES", &c.IdleAfterCycles, countFloor)
	f.Wait("QUEEN_SWEEPER_EMPTY_CLAIM_MIN_MS", &c.EmptyClaimMin, SleepFloor)
	f.Wait("QUEEN_SWEEPER_EMPTY_CLAIM_MAX_MS", &c.EmptyClaimMax, SleepFloor)
	f.Wait("QUEEN_SWEEPER_LEASE_MS", &c.Lease, LeaseFloor)
	f.Count("QUEEN_SWEEPER_CLAIM_BATCH", &c.ClaimBatch, countFloor)
	f.Count("QUEEN_SWEEPER_CYCLE_MAX_ROWS", &c.CycleMaxRows, countFloor)
	f.Count("QUEEN_SWEEPER_DUE_CAP", &c.DueCap, countFloor)
	f.Size("QUEEN_SWEEPER_MAX_FIRE_BYTES", &c.MaxFireBytes, countFloor)
	f.Count("QUEEN_SWEEPER_PARALLELISM", &c.Parallelism, countFloor)
	f.Count("QUEEN_SWEEPER_MAX_ATTEMPTS", &c.MaxAttempts, countFloor)
	f.Wait("QUEEN_SWEEPER_BACKOFF_MIN_MS", &c.BackoffMin, SleepFloor)
	f.Wait("QUEEN_SWEEPER_BACKOFF_MAX_MS", &c.BackoffMax, SleepFloor)
	f.Wait("QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS", &c.TransientBackoff, SleepFloor)
	f.Count("QUEEN_SWEEPER_FIRE_RATE_PER_TENANT", &c.FireRatePerTenant, countFloor)
	f.Wait("QUEEN_KV_EXPIRE_EVERY_MS", &c.ExpireEvery, SleepFloor)
	f.Count("QUEEN_KV_EXPIRE_BATCH", &c.ExpireBatch, countFloor)
	f.Wait("QUEEN_KV_USAGE_EVERY_MS", &c.UsageEvery, UsageFloor)
}

// Raised is the configuration with what is below a floor raised to it.
func (c Config) Raised() Config {
	c.Raise(new(config.Floors))
	return c
}
