package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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

// Keys of queen.system_state.
const (
	keyKVEnabled       = "kv_enabled"
	keyScheduleEnabled = "timers_schedule_enabled"
	keyFireEnabled     = "timers_fire_enabled"
)

// KVSwitches reads the switches.
func (s *Store) KVSwitches(ctx context.Context) (KVSwitches, error) {
	on := map[string]bool{keyKVEnabled: true, keyScheduleEnabled: true, keyFireEnabled: true}
	err := s.db.Do(ctx, "read switches", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT key, value -> 'enabled' FROM queen.system_state WHERE key = ANY ($1)`,
			[]string{keyKVEnabled, keyScheduleEnabled, keyFireEnabled})
		if err != nil {
			return err
		}
		var key string
		var enabled json.RawMessage
		_, err = pgx.ForEachRow(rows, []any{&key, &enabled}, func() error {
			on[key] = string(enabled) != "false"
			return nil
		})
		return err
	})
	return KVSwitches{KV: on[keyKVEnabled], TimersSchedule: on[keyScheduleEnabled], TimersFire: on[keyFireEnabled]}, err
}

// KVSwitchChange is a change of switches; nil leaves one as it is.
type KVSwitchChange struct {
	KV, TimersSchedule, TimersFire *bool
}

// SetKVSwitches records a change of switches.
func (s *Store) SetKVSwitches(ctx context.Context, c KVSwitchChange) error {
	const call = `INSERT INTO queen.system_state AS t (key, value, updated_at)
		SELECT u.key, jsonb_build_object('enabled', u.enabled), now() FROM unnest($1::TEXT[], $2::BOOLEAN[]) AS u (key, enabled) ORDER BY u.key
		ON CONFLICT (key) DO UPDATE SET value = t.value || EXCLUDED.value, updated_at = EXCLUDED.updated_at`
	var keys []string
	var values []bool
	for _, change := range []struct {
		key     string
		enabled *bool
	}{{keyKVEnabled, c.KV}, {keyScheduleEnabled, c.TimersSchedule}, {keyFireEnabled, c.TimersFire}} {
		if change.enabled != nil {
			keys, values = append(keys, change.key), append(values, *change.enabled)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	err := s.db.Do(ctx, "set switches", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, call, keys, values)
		return err
	})
	if err != nil {
		return fmt.Errorf("record %v: %w", keys, err)
	}
	return nil
}
