package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Flag is the key of an operator's flag in queen.system_state, whose value is an
// object with the boolean "enabled".
type Flag string

// The flags.
const (
	FlagPushMaintenance Flag = "maintenance_mode"
	FlagPopMaintenance  Flag = "pop_maintenance_mode"
	FlagKV              Flag = "kv_enabled"
	FlagTimersSchedule  Flag = "timers_schedule_enabled"
	FlagTimersFire      Flag = "timers_fire_enabled"
)

// Flags reads the given flags. Those that are not recorded, or not as a boolean, are
// left out.
func (s *Store) Flags(ctx context.Context, flags ...Flag) (map[Flag]bool, error) {
	recorded := make(map[Flag]bool, len(flags))
	err := s.db.Do(ctx, "read flags", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT key, (value -> 'enabled')::BOOLEAN FROM queen.system_state
			WHERE key = ANY ($1) AND jsonb_typeof(value -> 'enabled') = 'boolean'`, flags)
		if err != nil {
			return err
		}
		var flag Flag
		var enabled bool
		_, err = pgx.ForEachRow(rows, []any{&flag, &enabled}, func() error {
			recorded[flag] = enabled
			return nil
		})
		return err
	})
	return recorded, err
}

// SetFlags records flags. Those that are not named stay as they are.
func (s *Store) SetFlags(ctx context.Context, flags map[Flag]bool) error {
	const call = `INSERT INTO queen.system_state AS t (key, value, updated_at)
		SELECT u.key, jsonb_build_object('enabled', u.enabled), now() FROM unnest($1::TEXT[], $2::BOOLEAN[]) AS u (key, enabled) ORDER BY u.key
		ON CONFLICT (key) DO UPDATE SET value = t.value || EXCLUDED.value, updated_at = EXCLUDED.updated_at`
	if len(flags) == 0 {
		return nil
	}
	keys := slices.Sorted(maps.Keys(flags))
	values := make([]bool, len(keys))
	for i, key := range keys {
		values[i] = flags[key]
	}
	err := s.db.Do(ctx, "set flags", func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, call, keys, values)
		return err
	})
	if err != nil {
		return fmt.Errorf("record %v: %w", keys, err)
	}
	return nil
}
