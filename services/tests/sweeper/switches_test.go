package sweeper_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// requirePaused requires a refusal that may be repeated later.
func requirePaused(t *testing.T, a harness.Answer, code string) {
	t.Helper()
	require.Equal(t, http.StatusServiceUnavailable, a.Status, a)
	require.Equal(t, code, a.Object(t)["error"], a)
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, seconds)
}

// Switched off, nothing is fired and nothing is lost; switched on again, the oldest
// come first.
func TestFireSwitchBesideABacklog(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Sweepers: 2})
	c, sweepers := newCell(stage.Broker), stage.Sweepers
	require.Equal(t, object{"kvEnabled": true, "timersScheduleEnabled": true, "timersFireEnabled": false},
		pick(c.flip(t, `{"timersFire":false}`), "kvEnabled", "timersScheduleEnabled", "timersFireEnabled"))
	probes := map[*harness.Sweeper]float64{}
	for _, s := range sweepers {
		harness.Eventually(t, patience, "the sweeper is told", func() bool { return s.Metric(t, "queen_timers_fire_enabled") == 0 })
	}
	c.promise(t, c.backlog(t, 200, 8)...)
	for _, s := range sweepers {
		harness.Eventually(t, patience, "the sweeper sees the backlog", func() bool { return s.Metric(t, "queen_timers_due") == 200 })
		probes[s] = s.Metric(t, "queen_sweeper_probes_total")
	}
	for _, s := range sweepers {
		harness.Eventually(t, patience, "probes go on", func() bool { return s.Metric(t, "queen_sweeper_probes_total") >= probes[s]+2 })
		require.Zero(t, metricOf(t, s, "queen_timers_claimed_total"))
		require.Positive(t, s.Metric(t, "queen_timers_oldest_late_seconds"))
	}
	require.Equal(t, []int{200, 0, 0}, []int{c.pending(t), c.claimed(t), c.stored(t)})
	last := c.promises[len(c.promises)-1]
	key := harness.Value[string](t, c.DB, `SELECT timer_key FROM queen.log_timers WHERE message_id = $1::uuid`, last.id)
	require.Equal(t, "cancelled", c.Delete(t, timerPath(c.queue, key)).Object(t)["status"], "cancels work")
	c.promises = c.promises[:len(c.promises)-1]

	c.flip(t, `{"timersFire":true}`)
	c.requireOnce(t)
}

// A lane gets the timers of a backlog in the order of their instants, from the first
// claim to the last: this one takes eight claims and more.
func TestBacklogIsFiredInOrder(t *testing.T) {
	t.Parallel()
	const timers, lanes = 1600, 8
	c := own(t)
	c.flip(t, `{"timersFire":false}`)
	keys := make([]string, timers)
	for i := range keys {
		keys[i] = fmt.Sprintf("order-%d", i)
	}
	c.promise(t, c.late(keys, lanes)...)
	s := harness.StartSweeper(t, c.DB)
	harness.Eventually(t, patience, "the sweeper sees the backlog", func() bool { return s.Metric(t, "queen_timers_due") == timers })
	require.Zero(t, c.stored(t))
	c.flip(t, `{"timersFire":true}`)
	c.requireOnce(t)
	c.requireOrder(t)
}

// The other half: scheduling stops, and what was promised before is kept.
func TestScheduleSwitch(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 2, Sweepers: 1})
	c := newCell(stage.Broker)
	c.promise(t, schedule(c.queue, "pending", "lane", 400), schedule(c.queue, "far", "lane", later))
	c.flip(t, `{"timersSchedule":false}`)
	for _, b := range stage.Each { // each of them, one of which was not asked
		one := &cell{Broker: b, queue: c.queue}
		harness.Eventually(t, patience, "the broker is told", func() bool {
			a, err := one.operate(t.Context(), schedule(c.queue, "probe", "lane", later))
			require.NoError(t, err)
			return a.Status == http.StatusServiceUnavailable
		})
		a, err := one.operate(t.Context(), schedule(c.queue, "new", "lane", 0), object{"op": "cancel", "queue": c.queue, "timerKey": "far"})
		require.NoError(t, err)
		requirePaused(t, a, "timers_disabled")
		require.Contains(t, a.Header.Get("x-queen-timers-hint"), "DELETE")
		require.Equal(t, true, b.Get(t, timerPath(c.queue, "far")).Object(t)["found"])
		require.Equal(t, http.StatusOK, b.Get(t, timersPath+"/"+c.queue).Status)
		body := fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":%q,"payload":1}]}],"timers":[{"op":"schedule","queue":%q,"timerKey":"k",
			"delayMs":0,"txn":"t","payload":"e30="}]}`, c.queue+"-pushed", c.queue)
		a = b.Post(t, txPath, body)
		require.NotContains(t, []int{http.StatusCreated, http.StatusInternalServerError}, a.Status, a)
		require.NotEqual(t, true, a.Object(t)["success"], a)
		require.False(t, c.DB.HasQueue(t, c.queue+"-pushed"))
	}
	c.DB.Exec(t, `DELETE FROM queen.log_timers WHERE timer_key = 'probe'`) // before the brokers knew
	require.Equal(t, "cancelled", c.Delete(t, timerPath(c.queue, "far")).Object(t)["status"])
	c.promises = c.promises[:1]
	c.requireOnce(t)
	c.flip(t, `{"timersSchedule":true}`)
	harness.Eventually(t, patience, "both brokers schedule again", func() bool {
		for _, b := range stage.Each {
			a, err := (&cell{Broker: b}).operate(t.Context(), schedule("other", "k", "lane", later))
			require.NoError(t, err)
			if a.Status != http.StatusOK {
				return false
			}
		}
		return true
	})
}

// Keys are switched off for everybody but the prune.
func TestKVSwitch(t *testing.T) {
	t.Parallel()
	c := own(t)
	put := func() harness.Answer {
		a, err := c.Call(t.Context(), http.MethodPut, "/api/v1/kv/switched/k", []byte(`{"value":1,"ttlSeconds":3600}`), "Content-Type", "application/json")
		require.NoError(t, err)
		return a
	}
	require.Equal(t, http.StatusOK, put().Status)
	c.flip(t, `{"kv":false}`)
	requirePaused(t, put(), "kv_disabled")
	requirePaused(t, c.Get(t, "/api/v1/kv/switched/k"), "kv_disabled")
	requirePaused(t, c.Delete(t, "/api/v1/kv/switched/k"), "kv_disabled")
	requirePaused(t, c.Get(t, "/api/v1/resources/kv/namespaces"), "kv_disabled")
	requirePaused(t, c.Post(t, "/api/v1/resources/kv/list", `{"namespace":"switched"}`), "kv_disabled")
	requirePaused(t, c.Post(t, "/api/v1/kv", `[{"op":"get","ns":"switched","key":"k"}]`), "kv_disabled")
	a := c.Post(t, txPath, fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":%q,"payload":1}]}],
		"kv":[{"op":"get","ns":"switched","key":"k"}]}`, c.queue))
	require.Equal(t, http.StatusForbidden, a.Status, "for good: %s", a)
	require.Contains(t, string(a.Body), "kv_disabled")
	require.False(t, c.DB.HasQueue(t, c.queue))
	c.PushQueued(t, harness.Item{Queue: c.queue, Payload: 1})

	c.DB.Exec(t, `UPDATE queen.kv SET expires_at = now() - interval '1 second'`)
	harness.StartSweeper(t, c.DB)
	harness.Eventually(t, patience, "the prune goes on", func() bool {
		return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.kv`) == 0
	})
	c.flip(t, `{"kv":true}`)
	require.Equal(t, http.StatusOK, put().Status)
}

func TestSwitchesAreChangedOneByOne(t *testing.T) {
	t.Parallel()
	c := own(t)
	read := func() object {
		a := c.Get(t, switchesPath)
		require.Equal(t, http.StatusOK, a.Status, a)
		for _, name := range []string{"quotaTenants", "quotaAgeMs", "quotaHot"} {
			require.IsType(t, 0.0, a.Object(t)[name], a)
		}
		return pick(a.Object(t), "kvEnabled", "timersScheduleEnabled", "timersFireEnabled")
	}
	want := object{"kvEnabled": true, "timersScheduleEnabled": true, "timersFireEnabled": true}
	require.Equal(t, want, read(), "a row that is missing is on")
	for field, name := range map[string]string{"kv": "kvEnabled", "timersSchedule": "timersScheduleEnabled", "timersFire": "timersFireEnabled"} {
		c.flip(t, `{"`+field+`":false}`)
		want[name] = false
		require.Equal(t, want, read())
	}
	for _, body := range []string{``, `{}`, `{"other":true}`, `[]`, `{"kv":"false"}`, `{"kv":0}`} {
		require.Equal(t, http.StatusBadRequest, c.Post(t, switchesPath, body).Status, body)
	}
	require.Equal(t, want, read())
	c.DB.Exec(t, `DELETE FROM queen.system_state WHERE key IN ('kv_enabled', 'timers_schedule_enabled', 'timers_fire_enabled')`)
	require.Equal(t, object{"kvEnabled": true, "timersScheduleEnabled": true, "timersFireEnabled": true}, read())
	require.ElementsMatch(t, []string{`{"enabled": false}`}, func() []string {
		c.flip(t, `{"timersFire":false}`)
		return harness.Value[[]string](t, c.DB, `SELECT array_agg(value::text) FROM queen.system_state WHERE key = 'timers_fire_enabled'`)
	}())
}

// pick is some members of an object.
func pick(o object, names ...string) object {
	out := object{}
	for _, name := range names {
		out[name] = o[name]
	}
	return out
}
