package sweeper_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// put writes n keys that live for an hour.
func (c *cell) put(t *testing.T, prefix string, n int) {
	t.Helper()
	ops := make([]object, n)
	for i := range ops {
		ops[i] = object{"op": "put", "ns": "ns", "key": fmt.Sprintf("%s%d", prefix, i), "value": "v", "ttlSeconds": 3600}
	}
	body := marshal(t, object{"operations": ops})
	a := c.Post(t, "/api/v1/kv", body)
	require.Equal(t, http.StatusOK, a.Status, a)
}

func (c *cell) expire(t *testing.T, prefix string) {
	t.Helper()
	c.DB.Exec(t, `UPDATE queen.kv SET expires_at = now() - interval '5 seconds' WHERE key LIKE $1 || '%'`, prefix)
}

func (c *cell) keys(t *testing.T) int {
	t.Helper()
	return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.kv`)
}

func (c *cell) found(t *testing.T, key string) bool {
	t.Helper()
	return c.Get(t, "/api/v1/kv/ns/"+key).Object(t)["found"].(bool)
}

// An expired key is gone for readers at once; its row follows, and takes the ones
// beside it that are alive nowhere.
func TestPruneFollowsWhatReadersSee(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.put(t, "dead-", 50)
	c.put(t, "alive-", 10)
	c.expire(t, "dead-")
	require.False(t, c.found(t, "dead-1"), "before any prune")
	require.Equal(t, 60, c.keys(t))
	s := harness.StartSweeper(t, c.DB, "QUEEN_KV_EXPIRE_BATCH=7")
	harness.Eventually(t, patience, "the rows go", func() bool { return c.keys(t) == 10 })
	require.True(t, c.found(t, "alive-1"))
	harness.Eventually(t, patience, "it is told", func() bool {
		return s.Metric(t, "queen_kv_pruned_total") == 50 && s.Metric(t, "queen_kv_expired_not_pruned") == 0
	})
}

// A prune waits for nobody, and what it could not take is told even when it took
// nothing: reads are as right as ever, and only the table grows.
func TestUnprunedKeysRaiseAnAlarm(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.put(t, "held-", 20)
	c.put(t, "free-", 20)
	c.expire(t, "")
	tx, err := c.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM queen.kv WHERE key LIKE 'held-%' FOR UPDATE`)
	require.NoError(t, err)
	s := harness.StartSweeper(t, c.DB, "QUEEN_KV_EXPIRE_EVERY_MS=50")
	runs := func() float64 { return metricOf(t, s, `queen_sweeper_upkeep_total{outcome="done",phase="prune"}`) }
	harness.Eventually(t, patience, "the free ones go", func() bool { return c.keys(t) == 20 })
	before := runs()
	harness.Eventually(t, patience, "prunes that delete nothing go on", func() bool { return runs() >= before+2 })
	require.Equal(t, 20.0, s.Metric(t, "queen_kv_expired_not_pruned"))
	require.GreaterOrEqual(t, s.Metric(t, "queen_kv_expiry_lag_seconds"), 5.0)
	require.NoError(t, tx.Rollback(t.Context()))
	harness.Eventually(t, patience, "the rest goes", func() bool { return c.keys(t) == 0 })
}

// What tenants use is measured by sweepers and enforced by brokers: a tenant at its
// limit is blocked, and one that has emptied itself is not.
func TestQuotaFollowsWhatIsMeasured(t *testing.T) {
	t.Parallel()
	c := own(t, "QUEEN_KV_QUOTA_REFRESH_MS=1000")
	c.DB.Exec(t, `INSERT INTO queen.kv_quota (tenant_id, max_rows, max_timers) VALUES ('00000000-0000-0000-0000-000000000001', 10, 2)`)
	harness.StartSweeper(t, c.DB, "QUEEN_KV_USAGE_EVERY_MS=1000")
	c.put(t, "k", 10)
	c.promise(t, schedule(c.queue, "a", "lane", later), schedule(c.queue, "b", "lane", later))
	usage := func(rows, timers int) func() bool {
		return func() bool {
			return harness.Value[bool](t, c.DB, `SELECT EXISTS (SELECT FROM queen.kv_usage WHERE kv_rows = $1 AND timer_rows = $2)`, rows, timers)
		}
	}
	harness.Eventually(t, patience, "the rollup counts", usage(10, 2))
	write := func() harness.Answer {
		return c.Post(t, "/api/v1/kv", `[{"op":"put","ns":"ns","key":"one-more","value":1,"forever":true}]`)
	}
	harness.Eventually(t, patience, "the tenant is at its limits", func() bool { return write().Status == http.StatusForbidden })
	a := write()
	require.Equal(t, "kv_quota_exceeded", a.Object(t)["error"], a)
	harness.Eventually(t, patience, "of timers too", func() bool {
		a, err := c.operate(t.Context(), schedule(c.queue, "c", "lane", later))
		require.NoError(t, err)
		return a.Status == http.StatusForbidden && a.Object(t)["error"] == "timers_quota_exceeded"
	})
	require.True(t, c.found(t, "k1"), "reads pass")
	require.Equal(t, "cancelled", c.Delete(t, timerPath(c.queue, "a")).Object(t)["status"], "cancels pass")
	require.Equal(t, "cancelled", c.Delete(t, timerPath(c.queue, "b")).Object(t)["status"])
	c.Delete(t, timerPath(c.queue, "c"))
	for i := range 10 {
		require.Equal(t, http.StatusOK, c.Delete(t, fmt.Sprintf("/api/v1/kv/ns/k%d", i)).Status, "deletes pass")
	}
	c.Delete(t, "/api/v1/kv/ns/one-more")
	harness.Eventually(t, patience, "an empty tenant is measured too", usage(0, 0))
	harness.Eventually(t, patience, "and may write again", func() bool { return write().Status == http.StatusOK })
}

// Both of them may be missing: keys and timers work without.
func TestUpkeepWithoutItsProceduresSwitchesItselfOff(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.put(t, "k", 3)
	c.expire(t, "")
	for _, name := range []string{"kv_expire_step_v1", "kv_usage_step_v1"} {
		c.DB.Exec(t, harness.Value[string](t, c.DB, `SELECT 'DROP FUNCTION ' || oid::regprocedure FROM pg_proc WHERE proname = $1`, name))
	}
	s := harness.StartSweeper(t, c.DB, "QUEEN_KV_USAGE_EVERY_MS=1000", "QUEEN_KV_EXPIRE_EVERY_MS=20")
	for _, phase := range []string{"prune", "rollup"} {
		harness.Eventually(t, patience, "it is off", func() bool { return metricOf(t, s, `queen_sweeper_upkeep_off{phase="`+phase+`"}`) == 1 })
	}
	c.promise(t, c.backlog(t, 40, 4)...)
	c.requireOnce(t)
	require.False(t, c.found(t, "k1"))
	c.put(t, "k", 3)
	require.True(t, c.found(t, "k1"))
	ready, why := s.Ready(t)
	require.True(t, ready, why)
}
