package store_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"context"

	"github.com/queenmq/queen/pkg/store"
)

func (b *bench) prune(rows int) store.KVExpired {
	b.t.Helper()
	out, err := b.store.KVExpire(b.t.Context(), store.Shards(0), rows)
	require.NoError(b.t, err)
	return out
}

// dead lays n rows that expired a minute ago.
func (b *bench) dead(n int) {
	b.t.Helper()
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at)
		SELECT 'n', 'dead' || g, '1', g, now() - INTERVAL '1 minute' - g * INTERVAL '1 second' FROM generate_series(1, $1::int) AS g`, n)
}

func TestKVPrune(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, store.KVExpired{Done: true}, b.prune(10), "nothing at all")
	b.kv(put("live", `"value":1,"forever":true`), put("ttl", `"value":1,"ttlSeconds":3600`))
	b.dead(25)
	first := b.prune(10)
	require.Equal(t, []any{10, false, 15, false}, []any{first.Deleted, first.Done, first.Unpruned, first.Capped})
	require.Greater(t, first.Lag, time.Minute)
	second := b.prune(20)
	require.Equal(t, []any{15, true, 0, time.Duration(0)}, []any{second.Deleted, second.Done, second.Unpruned, second.Lag}, "fewer than it may take")
	require.EqualValues(t, 2, b.count(`SELECT count(*) FROM queen.kv`))
	b.dead(25)
	exact := b.prune(25)
	require.Equal(t, []any{25, false}, []any{exact.Deleted, exact.Done}, "as many as it may take, and there may be more")

	b.dead(100)
	capped := b.prune(11)
	require.Equal(t, []any{88, true}, []any{capped.Unpruned, capped.Capped}, "counted up to eight budgets")
	below := b.prune(11)
	require.Equal(t, []any{78, false}, []any{below.Unpruned, below.Capped})
	b.dead(0)
	b.exec(`DELETE FROM queen.kv`)
	b.dead(1100)
	require.Equal(t, 1000, b.prune(0).Deleted, "the usual budget")
	require.Equal(t, 100, b.prune(-1).Deleted)

	b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at) VALUES ('n', 'edge', '1', 1, '2030-01-01T00:00:00Z')`)
	for instant, deleted := range map[string]float64{"2029-12-31T23:59:59.999999Z": 0, "2030-01-01T00:00:00Z": 1} {
		b.exec(`UPDATE queen.kv SET expires_at = '2030-01-01T00:00:00Z'`)
		b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at) VALUES ('n', 'edge', '1', 1, '2030-01-01T00:00:00Z') ON CONFLICT DO NOTHING`)
		text, err := b.query(`SELECT queen.kv_expire_step_v1(ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g), $1::text::timestamptz, 10)`, instant)
		require.NoError(t, err)
		require.Equal(t, deleted, object(t, []byte(text))["deleted"], instant)
	}
	for _, shards := range []string{`NULL`, `'{}'`} {
		b.dead(1)
		text, err := b.query(`SELECT queen.kv_expire_step_v1(` + shards + `) - 'now'`)
		require.NoError(t, err)
		require.JSONEq(t, `{"deleted":0,"done":true,"unpruned":0,"unprunedCapped":false,"lagMs":0}`, text)
		b.exec(`DELETE FROM queen.kv`)
	}
	b.dead(64)
	var shard int16
	b.one([]any{&shard}, `SELECT shard FROM queen.kv WHERE key = 'dead1'`)
	own := b.count(`SELECT count(*) FROM queen.kv WHERE shard = $1`, shard)
	out, err := b.store.KVExpire(t.Context(), []int16{shard}, 1000)
	require.NoError(t, err)
	require.EqualValues(t, own, out.Deleted, "its own shard alone")
}

// The prune waits for nobody, and spares what was written again.
func TestKVPruneWaitsForNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.dead(3)
	b.inside(`UPDATE queen.kv SET expires_at = now() + INTERVAL '1 hour' WHERE key = 'dead2'`, func() {
		out := b.prune(10)
		require.Equal(t, []any{2, true, 1}, []any{out.Deleted, out.Done, out.Unpruned}, "the held one is counted")
		require.Greater(t, out.Lag, time.Minute)
	})
	require.Equal(t, store.KVExpired{Done: true}, b.prune(10))
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM queen.kv WHERE key = 'dead2'`))
}

// Steps read what they take, also with plans that were made on empty tables.
func TestKVSweepStepsReadLittle(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(t.Context()) }()
	const shards = `ARRAY(SELECT g::smallint FROM generate_series(0, 63) AS g)`
	calls := []struct {
		table, call string
		rows        int64
	}{
		{"kv", `SELECT queen.kv_expire_step_v1(` + shards + `, NULL, 5)`, 200},
		{"kv", `SELECT queen.kv_expire_step_v1(` + shards + `, '2000-01-01T00:00:00Z', 5)`, 0},
		{"log_timers", `SELECT queen.log_timers_due_v1(` + shards + `, '2000-01-01T00:00:00Z')`, 64},
		{"log_timers", `SELECT queen.log_timers_due_v1(` + shards + `, NULL, 10)`, 90},
		{"log_timers", `SELECT count(*) FROM queen.log_timers_claim_v1(` + shards + `, '2000-01-01T00:00:00Z')`, 0},
		{"log_timers", `SELECT count(*) FROM queen.log_timers_claim_v1(` + shards + `, NULL, 1000, 10)`, 64*8 + 40}, // the earliest of each shard, to find those of all
		{"log_timers", `SELECT queen.log_timers_fire_v1(ARRAY['00000000-0000-0000-0000-000000000001'::uuid], ARRAY['q'], ARRAY['p'], ARRAY[1],
			ARRAY['0123456789abcdef'::bytea], ARRAY[''::bytea], ARRAY['k7'], ARRAY[1], ARRAY['00000000-0000-0000-0000-000000000001'::uuid])`, 4},
		{"log_timers", `SELECT queen.log_timers_fail_v1(ARRAY['00000000-0000-0000-0000-000000000001'::uuid], ARRAY['q'], ARRAY['k7'], ARRAY['00000000-0000-0000-0000-000000000001'::uuid])`, 4},
		{"log_timers", `SELECT queen.log_timers_dlq_v1(ARRAY['00000000-0000-0000-0000-000000000001'::uuid], ARRAY['q'], ARRAY['k8'], ARRAY['1'::jsonb], ARRAY['e'], 0)`, 6},
		{"log_timers", `SELECT queen.log_timers_apply_v1('[{"op":"cancel","queue":"q","timerKey":"k9"},` + schedule("k10", 5) + `]', '00000000-0000-0000-0000-000000000001')`, 8},
		{"log_timers", `SELECT queen.log_timers_peek_v1('00000000-0000-0000-0000-000000000001', 'q', 'k9')`, 1},
		{"log_timers", `SELECT queen.log_timers_list_v1('00000000-0000-0000-0000-000000000001', 'q', 'k5', 3)`, 10},
		{"log_timers", `SELECT queen.log_timers_count_v1('00000000-0000-0000-0000-000000000001', 'q', 'k50')`, 20},
	}
	for _, c := range calls {
		_, err := session.Exec(t.Context(), c.call)
		require.NoError(t, err, c.call)
	}
	b.exec(`DELETE FROM queen.log_timers`)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at) SELECT 'n', 'k' || g, '1', g, now() - INTERVAL '1 day' FROM generate_series(1, 5000) AS g`)
	b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload, claim_token, claimed_until)
		SELECT 'q', 'k' || g, now() - INTERVAL '1 day', 't', gen_random_uuid(), '', CASE WHEN g = 7 THEN '00000000-0000-0000-0000-000000000001'::uuid END,
			CASE WHEN g = 7 THEN now() + INTERVAL '1 day' END FROM generate_series(1, 5000) AS g`)
	for _, c := range calls {
		require.LessOrEqual(t, b.rowsRead(session, c.table, c.call), c.rows, c.call)
	}
}

func (b *bench) usageNow(tenants int) store.KVUsage {
	b.t.Helper()
	usage, err := b.store.KVMeasure(b.t.Context(), store.Shards(5), tenants)
	require.NoError(b.t, err)
	return usage
}

func TestKVUsage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, store.KVUsage{Tenants: []store.KVTenantUsage{}, Scale: 1}, b.usageNow(0))

	one, two, three := uuid.UUID{15: 11}, uuid.UUID{15: 12}, uuid.UUID{15: 13}
	b.exec(`INSERT INTO queen.kv (tenant_id, namespace, key, value, version, expires_at) SELECT $1, 'n', 'k' || g, to_jsonb(repeat('x', 100)), g,
		CASE WHEN g > 20 THEN now() - INTERVAL '1 s' WHEN g > 10 THEN now() + INTERVAL '1 h' END FROM generate_series(1, 30) AS g`, one)
	b.exec(`INSERT INTO queen.log_timers (tenant_id, queue, timer_key, deliver_at, txn, message_id, payload) SELECT $1, 'q', 'k' || g,
		'2030-01-01T00:00:00Z'::timestamptz + g * INTERVAL '1 s', 't', gen_random_uuid(), '\x0102' FROM generate_series(1, 5) AS g`, two)
	b.exec(`INSERT INTO queen.kv (tenant_id, namespace, key, value, version) VALUES ($1, 'n', 'k', '1', 1)`, three)
	b.exec(`INSERT INTO queen.kv_quota (tenant_id, enabled, max_rows, max_bytes, max_timers) VALUES ($1, TRUE, 60, 1, NULL), ($2, FALSE, NULL, NULL, 1), ($3, TRUE, 0, 30, NULL)`, one, two, three)
	bytes := b.count(`SELECT sum(pg_column_size(value)) FROM queen.kv WHERE tenant_id = $1 AND (expires_at IS NULL OR expires_at > now())`, one)
	small := b.count(`SELECT pg_column_size(value) FROM queen.kv WHERE tenant_id = $1`, three)
	usage := b.usageNow(10)
	require.False(t, usage.Sampled)
	require.Len(t, usage.Tenants, 3)
	oldest := time.Date(2030, 1, 1, 0, 0, 1, 0, time.UTC)
	require.Equal(t, store.KVTenantUsage{Tenant: one, KVRows: 20, KVBytes: bytes, KVQuotaRatio: 0.3333}, usage.Tenants[0], "live keys; rows count before bytes")
	require.Equal(t, store.KVTenantUsage{Tenant: two, TimerRows: 5, TimerBytes: 10, TimerOldest: &oldest}, usage.Tenants[1], "a quota that is switched off")
	require.Equal(t, one, b.usageNow(1).Tenants[0].Tenant, "the largest")
	require.Len(t, b.usageNow(1).Tenants, 1)
	require.InDelta(t, float64(small)/30, usage.Tenants[2].KVQuotaRatio, 0.0001, "bytes where rows are not limited")
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.kv_usage`))

	b.exec(`DELETE FROM queen.kv`)
	b.exec(`DELETE FROM queen.log_timers`)
	empty := b.usageNow(10)
	require.Equal(t, []store.KVTenantUsage{{Tenant: one}, {Tenant: two}, {Tenant: three}}, empty.Tenants, "who has emptied itself")
	require.EqualValues(t, 3, b.count(`SELECT count(*) FROM queen.kv_usage WHERE kv_rows = 0 AND kv_bytes = 0 AND timer_rows = 0 AND timer_bytes = 0 AND timer_oldest IS NULL`))
}

// A measurement never overwrites a newer one.
func TestKVUsageDoesNotGoBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("k", `"value":1,"forever":true`))
	b.usageNow(10)
	b.exec(`UPDATE queen.kv_usage SET kv_rows = 77, computed_at = now() + INTERVAL '1 h'`)
	b.usageNow(10)
	require.EqualValues(t, 77, b.count(`SELECT kv_rows FROM queen.kv_usage`))
	b.exec(`UPDATE queen.kv_usage SET computed_at = now() - INTERVAL '1 h'`)
	b.usageNow(10)
	require.EqualValues(t, 1, b.count(`SELECT kv_rows FROM queen.kv_usage`))
}

// Above 200,000 keys eight shards stand for all, for keys and timers.
func TestKVUsageSamples(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version) SELECT 'n', 'k' || g, '1', g FROM generate_series(1, 2000) AS g`)
	b.exec(`INSERT INTO queen.log_timers (queue, timer_key, deliver_at, txn, message_id, payload)
		SELECT 'q', 'k' || g, now(), 't', gen_random_uuid(), '\x01' FROM generate_series(1, 1000) AS g`)
	small := uuid.UUID{15: 9}
	b.exec(`INSERT INTO queen.kv (tenant_id, namespace, key, value, version) SELECT $1, 'n', 'k' || g, '1', g FROM generate_series(1, 500) AS g WHERE hashtextextended('k' || g, 0) & 63 >= 8 LIMIT 3`, small)
	b.exec(`INSERT INTO queen.kv_usage (tenant_id, kv_rows) VALUES ($1, 99)`, small)
	kept := b.count(`SELECT count(*) FROM queen.kv WHERE shard < 8 AND tenant_id <> $1`, small)
	timers := b.count(`SELECT count(*) FROM queen.log_timers WHERE shard < 8`)
	for estimate, sampled := range map[string]bool{"-1": false, "200000": false, "200001": true} {
		b.exec(`UPDATE pg_class SET reltuples = ` + estimate + ` WHERE oid = 'queen.kv'::regclass`)
		usage := b.usageNow(10)
		require.Equal(t, sampled, usage.Sampled, estimate)
		require.Equal(t, int64(3), usage.Tenants[1].KVRows, "too small for the sample, and exact")
		if !sampled {
			require.Equal(t, []any{int64(2000), int64(1000), 1.}, []any{usage.Tenants[0].KVRows, usage.Tenants[0].TimerRows, usage.Scale}, estimate)
			continue
		}
		require.Equal(t, []any{8 * kept, 8 * timers, 8 * timers, 8.}, []any{usage.Tenants[0].KVRows, usage.Tenants[0].TimerRows, usage.Tenants[0].TimerBytes, usage.Scale})
	}
	b.exec(`UPDATE pg_class SET reltuples = 1e6 WHERE oid = 'queen.kv'::regclass`)
	for shards, want := range map[string]string{
		"0, 7":    `{"sampled": false, "scale": 1}`, // eight of them, read exactly
		"0, 8":    `{"sampled": true, "scale": 1.125}`,
		"40, 59":  `{"sampled": true, "scale": 2.5}`,
		"0, -1":   `{"sampled": false, "scale": 1}`,
		"63, 63":  `{"sampled": false, "scale": 1}`,
		"10, 200": `{"sampled": true, "scale": 23.875}`,
	} {
		text, err := b.query(`SELECT queen.kv_usage_step_v1(ARRAY(SELECT g::smallint FROM generate_series(` + shards + `) AS g)) - '{now,tenants}'::text[]`)
		require.NoError(t, err)
		require.JSONEq(t, want, text, shards)
	}
}

// Two sweepers that measure at once do not deadlock.
func TestKVUsageConcurrently(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.kv (tenant_id, namespace, key, value, version) SELECT gen_random_uuid(), 'n', 'k', '1', g FROM generate_series(1, 300) AS g`)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			var err error
			for range 10 {
				if err == nil {
					_, err = b.store.KVMeasure(t.Context(), store.Shards(0), 1)
				}
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, 300, b.count(`SELECT count(*) FROM queen.kv_usage WHERE kv_rows = 1`))
}

func TestKVQuotas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	quotas := func(n int) []store.KVQuota {
		out, err := b.store.KVQuotas(t.Context(), n)
		require.NoError(t, err)
		return out
	}
	require.Empty(t, quotas(10))
	tenant := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	b.exec(`INSERT INTO queen.kv_quota (tenant_id, enabled, max_rows, max_bytes, max_timers, max_timer_horizon_s, max_reads_per_sec, max_writes_per_sec) VALUES
		($1, TRUE, 100, 1000, 10, 60, 5, 6), ($2, FALSE, 100, NULL, NULL, NULL, NULL, NULL), ($3, TRUE, NULL, NULL, 10, NULL, NULL, NULL)`, tenant(1), tenant(2), tenant(3))
	b.exec(`INSERT INTO queen.kv_usage (tenant_id, computed_at, kv_rows, kv_bytes, timer_rows) VALUES
		($1, '2030-01-01T00:00:00.123456Z', 20, 10, 1), ($2, now(), 50, 1, 0), ($3, now(), 500, 5, 9), ($4, now(), 1, 1, 1), ($5, now(), 2, 1, 1)`,
		tenant(1), tenant(2), tenant(3), tenant(4), tenant(5))
	b.exec(`INSERT INTO queen.kv_quota (tenant_id) VALUES ($1)`, tenant(6))
	all := quotas(10)
	var order []byte
	for _, q := range all {
		order = append(order, q.Tenant[15])
	}
	require.Equal(t, []byte{3, 2, 1, 6, 5, 4}, order, "the granted, then the closest to a limit, then the largest")
	require.Equal(t, store.KVQuota{
		Tenant: tenant(1), Granted: true, Enabled: true, MaxRows: ptr[int64](100), MaxBytes: ptr[int64](1000), MaxTimers: ptr[int64](10), MaxHorizonS: ptr[int64](60),
		MaxReadsPerSec: ptr[int64](5), MaxWritesPerSec: ptr[int64](6), KVRows: 20, KVBytes: 10, TimerRows: 1, ComputedAtMs: 1893456000123,
	}, all[2])
	require.Equal(t, store.KVQuota{Tenant: tenant(6), Granted: true, Enabled: true}, all[3])
	require.False(t, all[1].Enabled)
	require.Equal(t, []any{false, true}, []any{all[4].Granted, all[4].Enabled}, "without a quota")
	require.Len(t, quotas(2), 2)
	require.Len(t, quotas(0), 1, "at least one")
}

func TestKVSwitches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	read := func() store.KVSwitches {
		s, err := b.store.KVSwitches(t.Context())
		require.NoError(t, err)
		return s
	}
	require.Equal(t, store.KVSwitches{KV: true, TimersSchedule: true, TimersFire: true}, read(), "what is not recorded is on")
	require.NoError(t, b.store.SetFlags(t.Context(), nil))
	require.NoError(t, b.store.SetFlags(t.Context(), store.KVSwitchChange{KV: ptr(false), TimersFire: ptr(false)}.Flags()))
	require.Equal(t, store.KVSwitches{TimersSchedule: true}, read())
	require.NoError(t, b.store.SetFlags(t.Context(), store.KVSwitchChange{KV: ptr(true), TimersSchedule: ptr(false)}.Flags()))
	require.Equal(t, store.KVSwitches{KV: true}, read())
	var value json.RawMessage
	b.one([]any{&value}, `SELECT value FROM queen.system_state WHERE key = 'timers_fire_enabled'`)
	require.JSONEq(t, `{"enabled":false}`, string(value))
	b.exec(`UPDATE queen.system_state SET value = '{}' WHERE key = 'timers_fire_enabled'`)
	require.True(t, read().TimersFire)
}

// Names are compared and ordered by their bytes, whatever the database prefers.
func TestKVNamesAreCollatedByBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var columns string
	b.one([]any{&columns}, `SELECT string_agg(a.attname, ' ' ORDER BY a.attname) FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation
		WHERE a.attrelid IN ('queen.kv'::regclass, 'queen.log_timers'::regclass) AND c.collname = 'C'`)
	require.Equal(t, "key namespace queue timer_key", columns)
}

// The rights that everybody has on the tables.
func TestKVGrants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, table := range []string{"kv", "kv_quota", "kv_usage", "log_timers"} {
		for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			require.EqualValues(t, 1, b.count(`SELECT count(*) WHERE has_table_privilege('public', $1, $2)`, "queen."+table, right), "%s on %s", right, table)
		}
	}
	require.EqualValues(t, 1, b.count(`SELECT count(*) WHERE has_sequence_privilege('public', 'queen.kv_version_seq', 'USAGE')
		AND NOT has_sequence_privilege('public', 'queen.kv_version_seq', 'SELECT')`))
}

// The files of the sweeper and of the quota are nothing that the rest needs.
func TestKVWorksWithoutTheSweeperFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.db.Do(t.Context(), "test", func(ctx context.Context, conn *pgx.Conn) error {
		for _, f := range []string{"kv_expire_step_v1(smallint[], timestamptz, int)", "kv_usage_step_v1(smallint[], timestamptz, int)"} {
			if _, err := conn.Exec(ctx, fmt.Sprintf(`DROP FUNCTION queen.%s`, f)); err != nil {
				return err
			}
		}
		return nil
	}))
	b.kv(put("k", `"value":1,"forever":true`))
	b.expired("dead", `1`)
	require.Equal(t, false, b.kv(getOp("dead"))[0]["found"])
	_, err := b.store.KVExpire(t.Context(), store.Shards(0), 10)
	require.Equal(t, store.RetryLater, store.Classify(err))
	_, err = b.store.KVMeasure(t.Context(), store.Shards(0), 10)
	require.Equal(t, store.RetryLater, store.Classify(err))
}

func TestSweepTables(t *testing.T) {
	t.Parallel()
	b := setup(t)
	empty, err := b.store.SweepTables(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"kv", "log_timers"}, []string{empty[0].Table, empty[1].Table})
	b.dead(1000)
	full, err := b.store.SweepTables(t.Context())
	require.NoError(t, err)
	require.Greater(t, full[0].Bytes, empty[0].Bytes)
	require.Equal(t, empty[1].Bytes, full[1].Bytes)
	require.GreaterOrEqual(t, full[0].Dead, int64(0))
}
