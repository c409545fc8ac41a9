package config

import (
	"cmp"
	"errors"
	"strconv"
	"time"

	env "github.com/queenmq/queen/pkg/config"
)

// Fusion is how pushes of different requests share segments and transactions.
type Fusion struct {
	// Shards divides the queues, so that their bookkeeping does not meet in one lock.
	Shards int `envconfig:"QUEEN_V2_FUSION_SHARDS" default:"8"`
	// BundleMax is the most lanes of one transaction.
	BundleMax int `envconfig:"QUEEN_V2_BUNDLE_MAX" default:"128"`
	// MaxInflight is the most transactions of one shard at once; 0 is as many as
	// processors.
	MaxInflight int `envconfig:"QUEEN_V2_FUSION_MAX_INFLIGHT" default:"0"`
}

// Dedup is what the broker remembers of the dedup windows it has read.
type Dedup struct {
	// Cache spares pushes the probe of the window; off, every push probes.
	Cache bool `envconfig:"QUEEN_DEDUP_CACHE" default:"true"`
	// CacheMB bounds the cache, in MiB. Mind the memory limit of the container.
	CacheMB int `envconfig:"QUEEN_DEDUP_CACHE_MB" default:"512"`
}

// Hotlist is the memory of lanes that may have work.
type Hotlist struct {
	// Enabled serves queue-wide pops from memory; off, the database searches.
	Enabled bool `envconfig:"QUEEN_HOTLIST" default:"true"`
	// Shards divides the ring of a group; 0 takes QUEEN_V2_FUSION_SHARDS.
	Shards int `envconfig:"QUEEN_HOTLIST_SHARDS" default:"0"`
	// Reseed is how often a ring is derived anew from the database.
	Reseed time.Duration `envconfig:"QUEEN_HOTLIST_RESEED_MS" default:"30000"`
	// IdleSweep is how long a queue nobody touches is remembered; 0 is for ever.
	IdleSweep time.Duration `envconfig:"QUEEN_HOTLIST_IDLE_SWEEP_MS" default:"300000"`
	// WindowBatch is how many messages release a lane of a windowBuffer queue early.
	WindowBatch int `envconfig:"QUEEN_HOTLIST_WINDOW_BATCH" default:"100"`
}

// PopFusion is how pops of one group share transactions.
type PopFusion struct {
	// Enabled has pops of one lane each claim together, and keeps the pace.
	Enabled bool `envconfig:"QUEEN_POP_FUSION" default:"true"`
	// MaxClaims is the most pops of one transaction.
	MaxClaims int `envconfig:"QUEEN_POP_FUSION_MAX_JOBS" default:"64"`
	// MaxPace bounds the interval between the claims of a group whose batches do not
	// get half full; 0 claims at once, always.
	MaxPace time.Duration `envconfig:"QUEEN_POP_FUSION_PACE_MS" default:"20"`
}

// Acks is how acknowledgements are made cheap. None of it changes an answer.
type Acks struct {
	// Registry remembers delivered batches, so that a full ack is one cursor move.
	Registry bool `envconfig:"QUEEN_ACK_REGISTRY" default:"true"`
	// RegistryMB bounds the registry, in MiB.
	RegistryMB int `envconfig:"QUEEN_ACK_REGISTRY_MB" default:"64"`
	// Fusion lets full acks share transactions.
	Fusion bool `envconfig:"QUEEN_ACK_FUSION" default:"true"`
	// FusionShards divides the lanes, each part with one transaction at a time. More
	// only split what could share a commit: with single messages over 8 lanes on 2
	// processors, 1, 2 and 4 shards acknowledged 1,730, 1,360 and 1,170 a second.
	FusionShards int           `envconfig:"QUEEN_ACK_FUSION_SHARDS" default:"1"`
	FusionHold   time.Duration `envconfig:"QUEEN_ACK_FUSION_HOLD_MS" default:"3"`
}

// Budget is how many write transactions run at once, and who waits first.
type Budget struct {
	// Min, Init and Max bound the adaptive budget; 0 derives them from the pool.
	Min  int `envconfig:"QUEEN_ADMISSION_MIN" default:"0"`
	Init int `envconfig:"QUEEN_ADMISSION_INIT" default:"0"`
	Max  int `envconfig:"QUEEN_ADMISSION_MAX" default:"0"`
	// The shares rank those who wait once the budget is used up.
	ShareAck   float64 `envconfig:"QUEEN_ADMISSION_SHARE_ACK" default:"0.30"`
	SharePop   float64 `envconfig:"QUEEN_ADMISSION_SHARE_POP" default:"0.40"`
	SharePush  float64 `envconfig:"QUEEN_ADMISSION_SHARE_PUSH" default:"0.25"`
	ShareMaint float64 `envconfig:"QUEEN_ADMISSION_SHARE_MAINT" default:"0.05"`
	// Tick is the control step in milliseconds, TrainGap (microseconds) separates
	// commits of one flush from those of the next.
	Tick     time.Duration `envconfig:"QUEEN_ADMISSION_TICK_MS" default:"500"`
	TrainGap int           `envconfig:"QUEEN_ADMISSION_TRAIN_GAP_US" default:"300"`
	// MaxWaiting is how many requests of a class may wait, for a slot or for a
	// shared transaction, and how many may wait for the bytes of their bodies.
	MaxWaiting int `envconfig:"QUEEN_ADMISSION_MAX_WAITING" default:"4096"`
	// NoSync is the budget while commits are too fast to tell anything.
	NoSync int  `envconfig:"QUEEN_ADMISSION_NOSYNC_BUDGET" default:"64"`
	Trace  bool `envconfig:"QUEEN_ADMISSION_TRACE" default:"false"` // log every decision
}

const (
	maxShards = 1024
	maxLanes  = 1024
	maxMB     = 1 << 20
)

// Validate checks the bounds of push fusion.
func (f Fusion) Validate() error {
	return errors.Join(
		env.Between("QUEEN_V2_FUSION_SHARDS", f.Shards, 1, maxShards),
		env.Between("QUEEN_V2_BUNDLE_MAX", f.BundleMax, 1, maxLanes),
		env.Between("QUEEN_V2_FUSION_MAX_INFLIGHT", f.MaxInflight, 0, maxLanes),
	)
}

// Validate checks the bounds of the dedup cache.
func (d Dedup) Validate() error {
	return env.Between("QUEEN_DEDUP_CACHE_MB", d.CacheMB, 1, maxMB)
}

// Validate checks the bounds of the hot list.
func (h Hotlist) Validate() error {
	return errors.Join(
		env.Between("QUEEN_HOTLIST_SHARDS", h.Shards, 0, maxShards),
		env.MillisBetween("QUEEN_HOTLIST_RESEED_MS", h.Reseed, time.Second, maxWait),
		env.MillisBetween("QUEEN_HOTLIST_IDLE_SWEEP_MS", h.IdleSweep, 0, maxWait),
		env.Between("QUEEN_HOTLIST_WINDOW_BATCH", h.WindowBatch, 1, maxLooks),
	)
}

// Validate checks the bounds of pop fusion.
func (p PopFusion) Validate() error {
	return errors.Join(
		env.Between("QUEEN_POP_FUSION_MAX_JOBS", p.MaxClaims, 1, maxLanes),
		env.MillisBetween("QUEEN_POP_FUSION_PACE_MS", p.MaxPace, 0, time.Second),
	)
}

// Validate checks the bounds of the ack accelerators.
func (a Acks) Validate() error {
	return errors.Join(
		env.Between("QUEEN_ACK_REGISTRY_MB", a.RegistryMB, 1, maxMB),
		env.Between("QUEEN_ACK_FUSION_SHARDS", a.FusionShards, 1, maxShards),
		env.MillisBetween("QUEEN_ACK_FUSION_HOLD_MS", a.FusionHold, time.Millisecond, time.Minute),
	)
}

// Validate checks the bounds of admission.
func (b Budget) Validate() error {
	problems := []error{
		env.Between("QUEEN_ADMISSION_MIN", b.Min, 0, 10000),
		env.Between("QUEEN_ADMISSION_INIT", b.Init, 0, 10000),
		env.Between("QUEEN_ADMISSION_MAX", b.Max, 0, 10000),
		env.MillisBetween("QUEEN_ADMISSION_TICK_MS", b.Tick, 10*time.Millisecond, time.Minute),
		env.Between("QUEEN_ADMISSION_TRAIN_GAP_US", b.TrainGap, 1, 1_000_000),
		env.Between("QUEEN_ADMISSION_MAX_WAITING", b.MaxWaiting, 1, 1_000_000),
		env.Between("QUEEN_ADMISSION_NOSYNC_BUDGET", b.NoSync, 1, 10000),
	}
	for _, share := range []struct {
		name  string
		value float64
	}{
		{"QUEEN_ADMISSION_SHARE_ACK", b.ShareAck}, {"QUEEN_ADMISSION_SHARE_POP", b.SharePop},
		{"QUEEN_ADMISSION_SHARE_PUSH", b.SharePush}, {"QUEEN_ADMISSION_SHARE_MAINT", b.ShareMaint},
	} {
		if !(share.value >= 0 && share.value <= 1) {
			problems = append(problems, &env.ValueError{
				Name: share.name, Value: strconv.FormatFloat(share.value, 'g', -1, 64), Allowed: "a number between 0 and 1",
			})
		}
	}
	if b.Min > 0 && b.Max > 0 && b.Min > b.Max {
		problems = append(problems, &env.ValueError{
			Name: "QUEEN_ADMISSION_MIN", Value: strconv.Itoa(b.Min), Allowed: "at most QUEEN_ADMISSION_MAX (" + strconv.Itoa(b.Max) + ")",
		})
	}
	return errors.Join(problems...)
}

// HotlistShards resolves the shards of a ring.
func (c *Config) HotlistShards() int { return cmp.Or(c.Hotlist.Shards, c.Fusion.Shards) }
