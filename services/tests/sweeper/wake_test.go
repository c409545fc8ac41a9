package sweeper_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// A sweeper that would sleep for long is woken by a schedule on any broker, by either
// way in, and tells all of them what it has fired.
func TestScheduleWakesASleepingSweeper(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 2, Sweepers: 1, SweeperEnv: []string{
		// Nothing else ends its pause.
		"QUEEN_SWEEPER_MAX_SLEEP_MS=3600000", "QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS=3600000", "QUEEN_KV_EXPIRE_EVERY_MS=3600000", "QUEEN_KV_USAGE_EVERY_MS=3600000",
	}})
	c := newCell(stage.Broker)
	for i, b := range stage.Each {
		one := &cell{Broker: b, queue: fmt.Sprintf("%s-%d", c.queue, i)}
		popped := park(t, stage.Each[1-i], harness.PopPath(one.queue, "wait=true&timeout=30000&autoAck=true&batch=2"))
		r := one.promise(t, schedule(one.queue, "route", "lane", 0))
		require.Equal(t, r[0]["messageId"], (<-popped).Messages[0].ID)

		popped = park(t, stage.Each[1-i], harness.PopPath(one.queue, "wait=true&timeout=30000&autoAck=true&batch=2"))
		a := b.Post(t, txPath, marshal(t, object{"operations": []any{}, "timers": []any{schedule(one.queue, "rider", "lane", 200)}}))
		require.Equal(t, true, a.Object(t)["success"], a)
		require.Len(t, (<-popped).Messages, 1)
	}
}

// park waits at an address.
func park(t *testing.T, b *harness.Broker, path string) <-chan harness.Popped {
	t.Helper()
	popped := make(chan harness.Popped, 1)
	go func() {
		p, err := b.TryPop(t.Context(), path)
		if err != nil || len(p.Messages) == 0 {
			t.Errorf("%v %s", err, p.Answer)
			p.Messages = make([]harness.Message, 1)
		}
		popped <- p
	}()
	return popped
}

// Nobody depends on hints: without them a timer of any broker is found within the
// longest pause of a sweeper, however long nothing has happened.
func TestTimersNeedNoHints(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 2, Sweepers: 1, Apart: true, SweeperEnv: []string{"QUEEN_SWEEPER_IDLE_AFTER_CYCLES=1"}})
	s := stage.Sweepers[0]
	harness.Eventually(t, patience, "it has nothing to do", func() bool { return metricOf(t, s, `queen_sweeper_sleeps_total{band="idle"}`) >= 3 })
	for i, b := range stage.Each {
		one := &cell{Broker: b, queue: fmt.Sprintf("apart-%d", i)}
		popped := park(t, stage.Each[1-i], harness.PopPath(one.queue, "wait=true&timeout=30000&autoAck=true"))
		began := time.Now()
		r := one.promise(t, schedule(one.queue, "k", "lane", 0))
		require.Equal(t, r[0]["messageId"], (<-popped).Messages[0].ID)
		took := time.Since(began)
		t.Logf("arrived after %s", took)
		require.Less(t, took, 5*time.Second, "1.1 s on a machine that has time")
	}
}

// However idle, a sweeper never sleeps beyond its longest pause.
func TestIdleSweeperKeepsProbing(t *testing.T) {
	t.Parallel()
	c := own(t)
	s := harness.StartSweeper(t, c.DB, "QUEEN_SWEEPER_MAX_SLEEP_MS=50", "QUEEN_SWEEPER_IDLE_AFTER_CYCLES=1",
		"QUEEN_KV_EXPIRE_EVERY_MS=3600000", "QUEEN_KV_USAGE_EVERY_MS=3600000", "QUEEN_SWEEPER_IDLE_MAX_SLEEP_MS=3600000")
	began, before := time.Now(), s.Metric(t, "queen_sweeper_probes_total")
	harness.Eventually(t, patience, "probes go on", func() bool { return s.Metric(t, "queen_sweeper_probes_total") >= before+20 })
	require.Greater(t, time.Since(began), 800*time.Millisecond, "and are no spin")
	require.Zero(t, metricOf(t, s, `queen_sweeper_sleeps_total{band="work"}`))
}

// Timers that are due and in other hands make no spin of a sweeper.
func TestEmptyClaimsAreNoSpin(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.promise(t, c.backlog(t, 30, 3)...)
	tx, err := c.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM queen.log_timers FOR UPDATE`)
	require.NoError(t, err)
	s := harness.StartSweeper(t, c.DB)
	harness.Eventually(t, patience, "it finds nothing to claim", func() bool { return s.Metric(t, "queen_sweeper_empty_claims_total") >= 1 })
	began, before := time.Now(), s.Metric(t, "queen_sweeper_empty_claims_total")
	harness.Eventually(t, patience, "again and again", func() bool { return s.Metric(t, "queen_sweeper_empty_claims_total") >= before+20 })
	require.Greater(t, time.Since(began), 19*25*time.Millisecond, "at least 25 ms apart")
	require.Equal(t, 30.0, s.Metric(t, "queen_timers_due"))
	require.NoError(t, tx.Rollback(t.Context()))
	c.requireOnce(t)
}

// Sweepers share a backlog; one that ends in the middle of it leaves nothing orphaned.
func TestSweepersShareABacklog(t *testing.T) {
	t.Parallel()
	c := own(t)
	c.flip(t, `{"timersFire":false}`)
	c.promise(t, c.backlog(t, 1500, 20)...)
	var all []*harness.Sweeper
	for range 3 {
		s := harness.StartSweeper(t, c.DB, "QUEEN_SWEEPER_CLAIM_BATCH=20", "QUEEN_SWEEPER_MAX_FIRE_BYTES=200", shortLease)
		harness.Eventually(t, patience, "it sees the backlog", func() bool { return s.Metric(t, "queen_timers_due") >= 1500 })
		all = append(all, s)
	}
	c.flip(t, `{"timersFire":true}`)
	harness.Eventually(t, patience, "all of them fire", func() bool {
		for _, s := range all {
			if metricOf(t, s, `queen_timers_fired_total{result="fired"}`) == 0 && c.pending(t) > 0 {
				return false
			}
		}
		return true
	})
	all[0].Kill()
	c.requireOnce(t)
	for i, s := range all[1:] {
		require.Positive(t, metricOf(t, s, `queen_timers_fired_total{result="fired"}`), "sweeper %d", i+1)
	}
}

// What is scheduled and what is fired stands in the metrics from the start.
func TestMetricsAreThereWhenIdle(t *testing.T) {
	t.Parallel()
	c := own(t)
	s := harness.StartSweeper(t, c.DB)
	harness.Eventually(t, patience, "a prune has run", func() bool {
		return metricOf(t, s, `queen_sweeper_upkeep_total{outcome="done",phase="prune"}`) > 0
	})
	text := string(s.Get(t, "/metrics/prometheus").Body)
	for _, name := range []string{
		"queen_timers_lateness_seconds_count", "queen_timers_due_capped", "queen_kv_expired_not_pruned_capped",
		"queen_kv_expired_not_pruned", "queen_kv_expiry_lag_seconds", "queen_timers_due", "queen_timers_oldest_late_seconds",
		"queen_timers_claimed_total", `queen_timers_fired_total{result="fired"}`, `queen_timers_fired_total{result="stale"}`,
		`queen_timers_fired_total{result="duplicate"}`, `queen_timers_fire_failures_total{class="permanent"}`, "queen_timers_dlq_total",
		"queen_sweeper_cycles_total", `queen_sweeper_table_size_bytes{table="log_timers"}`,
	} {
		require.Contains(t, text, name)
	}
	c.promise(t, schedule(c.queue, "k", "lane", -1500))
	c.requireOnce(t)
	harness.Eventually(t, patience, "the lag of a fire is noted", func() bool {
		return metricOf(t, s, `queen_timers_lateness_seconds_count`) == 1 && metricOf(t, s, `queen_timers_lateness_seconds_sum`) >= 1.5
	})
	a, err := c.Call(t.Context(), http.MethodGet, "/metrics/prometheus", nil)
	require.NoError(t, err)
	for _, reason := range []string{"rate_limited", "quota", "pool", "disabled"} {
		require.Contains(t, string(a.Body), `queen_kv_read_rejected_total{reason="`+reason+`"}`)
	}
}
