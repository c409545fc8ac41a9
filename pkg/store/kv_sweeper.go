package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// SweepShards is into how many shards keys and timers fall, for ever.
const SweepShards = 64

// Shards are all of them, beginning with first: sweepers that begin elsewhere do not
// queue for the same rows.
func Shards(first int) []int16 {
	shards := make([]int16, SweepShards)
	for i := range shards {
		shards[i] = int16(((first+i)%SweepShards + SweepShards) % SweepShards)
	}
	return shards
}

// KVExpired is what one prune did and left.
type KVExpired struct {
	Deleted  int
	Done     bool          // fewer rows were found than the call may take
	Unpruned int           // expired rows that are still there
	Capped   bool          // there may be more of them
	Lag      time.Duration // how long the oldest of them has been expired
}

// KVExpire deletes up to rows expired keys (kv_expire_step_v1), 1000 when rows is
// not positive. It waits for nobody.
func (s *Store) KVExpire(ctx context.Context, shards []int16, rows int) (KVExpired, error) {
	var answer struct {
		Deleted        int   `json:"deleted"`
		Done           bool  `json:"done"`
		Unpruned       int   `json:"unpruned"`
		UnprunedCapped bool  `json:"unprunedCapped"`
		LagMs          int64 `json:"lagMs"`
	}
	err := s.document(ctx, "prune keys", &answer, `SELECT queen.kv_expire_step_v1($1, NULL, $2)`, shards, rows)
	return KVExpired{
		Deleted: answer.Deleted, Done: answer.Done, Unpruned: answer.Unpruned, Capped: answer.UnprunedCapped, Lag: millis(answer.LagMs),
	}, err
}

// KVUsage is what all tenants use, the largest first.
type KVUsage struct {
	Tenants []KVTenantUsage `json:"tenants"`
	// Sampled tells that the numbers come from a part of the keys, and were
	// multiplied by Scale.
	Sampled bool    `json:"sampled"`
	Scale   float64 `json:"scale"`
}

// KVTenantUsage is what one tenant uses. The ratios are shares of its quota, 0
// without one.
type KVTenantUsage struct {
	Tenant          uuid.UUID  `json:"tenant"`
	KVRows          int64      `json:"kvRows"`
	KVBytes         int64      `json:"kvBytes"`
	TimerRows       int64      `json:"timerRows"`
	TimerBytes      int64      `json:"timerBytes"`
	TimerOldest     *time.Time `json:"timerOldest"`
	KVQuotaRatio    float64    `json:"kvQuotaRatio"`
	TimerQuotaRatio float64    `json:"timerQuotaRatio"`
}

// KVMeasure measures what tenants use and records it (kv_usage_step_v1). The answer
// names at most tenants of them.
func (s *Store) KVMeasure(ctx context.Context, shards []int16, tenants int) (KVUsage, error) {
	var usage KVUsage
	err := s.document(ctx, "measure usage", &usage, `SELECT queen.kv_usage_step_v1($1, NULL, $2)`, shards, tenants)
	return usage, err
}

// TableSize is what a table takes.
type TableSize struct {
	Table string // without its schema
	Bytes int64  // with its indexes and what is stored beside it
	Dead  int64  // row versions that wait for a vacuum, as far as the server knows
}

// SweepTables tells how large the tables of keys and timers are.
func (s *Store) SweepTables(ctx context.Context) (sizes []TableSize, err error) {
	const call = `SELECT t.relname, pg_total_relation_size(t.relid), t.n_dead_tup FROM pg_catalog.pg_stat_user_tables AS t
		WHERE t.relid IN ('queen.kv'::REGCLASS, 'queen.log_timers'::REGCLASS) ORDER BY t.relname`
	err = s.db.Do(ctx, "size of the tables of keys and timers", func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, call)
		if err != nil {
			return err
		}
		sizes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TableSize])
		return err
	})
	return sizes, err
}

// document runs a call that answers one JSON value and reads it into dest.
func (s *Store) document(ctx context.Context, name string, dest any, call string, args ...any) error {
	text, err := s.rawJSON(ctx, name, call, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, dest); err != nil {
		return fmt.Errorf("%s: %w: %w", name, errAnswer, err)
	}
	return nil
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
