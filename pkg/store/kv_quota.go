package store

import (
	"context"

	"github.com/google/uuid"
)

// KVQuota is what one tenant may use, and what it was last seen to use. A nil limit
// is none.
type KVQuota struct {
	Tenant          uuid.UUID `json:"tenant"`
	Granted         bool      `json:"granted"` // there is a quota row
	Enabled         bool      `json:"enabled"`
	MaxRows         *int64    `json:"maxRows"`
	MaxBytes        *int64    `json:"maxBytes"`
	MaxTimers       *int64    `json:"maxTimers"`
	MaxHorizonS     *int64    `json:"maxHorizonS"` // seconds
	MaxReadsPerSec  *int64    `json:"maxReadsPerSec"`
	MaxWritesPerSec *int64    `json:"maxWritesPerSec"`
	KVRows          int64     `json:"kvRows"`
	KVBytes         int64     `json:"kvBytes"`
	TimerRows       int64     `json:"timerRows"`
	ComputedAtMs    int64     `json:"computedAtMs"` // Unix time of the measurement, 0 for none
}

// KVQuotas reads the quotas and the usage of at most tenants tenants, the granted
// first, then those closest to a limit (kv_quota_refresh_v1).
func (s *Store) KVQuotas(ctx context.Context, tenants int) ([]KVQuota, error) {
	var quotas []KVQuota
	err := s.document(ctx, "read quotas", &quotas, `SELECT queen.kv_quota_refresh_v1($1)`, tenants)
	return quotas, err
}

// KVSwitches are the operator's switches. What is not recorded is on.
type KVSwitches struct {
	KV             bool
	TimersSchedule bool
	TimersFire     bool
}

// KVSwitches reads the switches.
func (s *Store) KVSwitches(ctx context.Context) (KVSwitches, error) {
	recorded, err := s.Flags(ctx, FlagKV, FlagTimersSchedule, FlagTimersFire)
	on := func(f Flag) bool {
		enabled, ok := recorded[f]
		return enabled || !ok
	}
	return KVSwitches{KV: on(FlagKV), TimersSchedule: on(FlagTimersSchedule), TimersFire: on(FlagTimersFire)}, err
}

// KVSwitchChange is a change of switches; nil leaves one as it is.
type KVSwitchChange struct {
	KV, TimersSchedule, TimersFire *bool
}

// Flags are the flags that the change sets.
func (c KVSwitchChange) Flags() map[Flag]bool {
	flags := make(map[Flag]bool)
	for flag, enabled := range map[Flag]*bool{FlagKV: c.KV, FlagTimersSchedule: c.TimersSchedule, FlagTimersFire: c.TimersFire} {
		if enabled != nil {
			flags[flag] = *enabled
		}
	}
	return flags
}
