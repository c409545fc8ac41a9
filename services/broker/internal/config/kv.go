package config

import (
	"errors"
	"strconv"
	"time"

	env "github.com/queenmq/queen/pkg/config"
)

// KV is what tenants may do with keys, and with timers where that is the same. The
// ceilings of one call are also fixed in the database: a value above those becomes
// the ceiling, and one below the least becomes the least.
type KV struct {
	MaxValueBytes  int `envconfig:"QUEEN_KV_MAX_VALUE_BYTES" default:"65536"`
	MaxKeyBytes    int `envconfig:"QUEEN_KV_MAX_KEY_BYTES" default:"512"`
	MaxOpsPerCall  int `envconfig:"QUEEN_KV_MAX_OPS_PER_CALL" default:"256"`
	MaxKeysPerCall int `envconfig:"QUEEN_KV_MAX_KEYS_PER_CALL" default:"1024"`
	// MaxReadBytes is known for its name alone: the database has the only ceiling.
	MaxReadBytes int `envconfig:"QUEEN_KV_MAX_READ_BYTES" default:"4194304"`
	// PrefixLimit is the longest page of a prefix.
	PrefixLimit int `envconfig:"QUEEN_KV_PREFIX_LIMIT" default:"1000"`

	// PoolSize is the number of connections for keys and timers, on top of those of
	// DB_POOL_SIZE; 0 is a tenth of that, from 4 to 32.
	PoolSize int `envconfig:"QUEEN_KV_POOL_SIZE" default:"0"`
	// RequireGrant refuses tenants without a quota row; tenancy asks for it, unless
	// this says otherwise.
	RequireGrant bool `envconfig:"QUEEN_KV_REQUIRE_GRANT" alias:"QUEEN_TENANCY_HEADER" default:"false"`

	// Rates are operations per second and tenant, and the bursts how many may come at
	// once. A rate of 0 sets no bound.
	ReadRate   int `envconfig:"QUEEN_KV_READ_RATE" default:"200"`
	ReadBurst  int `envconfig:"QUEEN_KV_READ_BURST" default:"400"`
	WriteRate  int `envconfig:"QUEEN_KV_WRITE_RATE" default:"100"`
	WriteBurst int `envconfig:"QUEEN_KV_WRITE_BURST" default:"200"`
	// CellRate bounds the operations of all tenants together; 0 sets no bound.
	CellRate int `envconfig:"QUEEN_KV_CELL_RATE" default:"2000"`
	// MaxTenants is how many tenants are remembered.
	MaxTenants int `envconfig:"QUEEN_KV_MAX_TENANTS" default:"10000"`

	// QuotaRefresh is how often quotas and usage are read.
	QuotaRefresh time.Duration `envconfig:"QUEEN_KV_QUOTA_REFRESH_MS" default:"30000"`
	// ReleasePercent of a limit is where a tenant that has reached it may go on.
	ReleasePercent int `envconfig:"QUEEN_KV_QUOTA_RELEASE_PERCENT" default:"90"`
	// HotPercent of a limit is where quotas are read sooner.
	HotPercent int `envconfig:"QUEEN_KV_QUOTA_HOT_PERCENT" default:"80"`
	// ShedAfter is how many calls in a row may find no connection before writes are
	// turned away.
	ShedAfter int `envconfig:"QUEEN_KV_STANDALONE_SHED_AFTER" default:"5"`
	// Flights is how many calls may be under way that carry single operations, while
	// others wait to share the next one; 0 is half of the connections, at most 12; -1
	// lets every call go alone.
	Flights int `envconfig:"QUEEN_KV_FLIGHTS" default:"0"`
}

// Ceilings of the database.
const (
	kvValueBytes = 65536
	kvKeyBytes   = 512
	kvOps        = 256
	kvKeys       = 4096
	kvReadBytes  = 4194304
	kvPage       = 1000
)

const (
	kvMinPool    = 2
	kvMaxPool    = 10000
	kvMaxRate    = 10_000_000
	kvMaxTenants = 1_000_000
)

// clamp brings the values that are guarded elsewhere into their bounds.
func (k *KV) clamp() {
	for _, one := range []struct {
		value     *int
		low, high int
	}{
		{&k.MaxValueBytes, 1, kvValueBytes}, {&k.MaxKeyBytes, 1, kvKeyBytes}, {&k.MaxOpsPerCall, 1, kvOps},
		{&k.MaxKeysPerCall, 1, kvKeys}, {&k.MaxReadBytes, 1, kvReadBytes}, {&k.PrefixLimit, 1, kvPage},
		{&k.ReleasePercent, 1, 99}, {&k.HotPercent, 1, 100},
	} {
		*one.value = max(one.low, min(*one.value, one.high))
	}
	k.ShedAfter = max(k.ShedAfter, 1)
	k.QuotaRefresh = max(k.QuotaRefresh, time.Second)
}

// Validate checks the bounds of what is not clamped.
func (k KV) Validate() error {
	problems := []error{
		env.Between("QUEEN_KV_READ_RATE", k.ReadRate, 0, kvMaxRate),
		env.Between("QUEEN_KV_READ_BURST", k.ReadBurst, 1, kvMaxRate),
		env.Between("QUEEN_KV_WRITE_RATE", k.WriteRate, 0, kvMaxRate),
		env.Between("QUEEN_KV_WRITE_BURST", k.WriteBurst, 1, kvMaxRate),
		env.Between("QUEEN_KV_CELL_RATE", k.CellRate, 0, kvMaxRate),
		env.Between("QUEEN_KV_MAX_TENANTS", k.MaxTenants, 1, kvMaxTenants),
		env.Between("QUEEN_KV_FLIGHTS", k.Flights, -1, kvMaxPool),
		env.MillisBetween("QUEEN_KV_QUOTA_REFRESH_MS", k.QuotaRefresh, 0, maxWait),
	}
	if k.PoolSize != 0 && (k.PoolSize < kvMinPool || k.PoolSize > kvMaxPool) {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_KV_POOL_SIZE", Value: strconv.Itoa(k.PoolSize), Allowed: "0 or a whole number between 2 and 10000",
		})
	}
	return errors.Join(problems...)
}

// KVPoolSize is the number of connections for keys and timers.
func (c *Config) KVPoolSize() int {
	const share, low, high = 10, 4, 32
	if c.KV.PoolSize > 0 {
		return c.KV.PoolSize
	}
	return max(low, min(c.Postgres.PoolSize/share, high))
}

// KVFlights is how many calls of single operations are under way before others share
// one, -1 for any number.
func (c *Config) KVFlights() int {
	// Calls that meet are cheaper together. Fewer flights than a dozen make calls of one
	// operation hardly faster, and let them wait longer for each other.
	const share, high = 2, 12
	if c.KV.Flights != 0 {
		return c.KV.Flights
	}
	return min(c.KVPoolSize()/share, high)
}
