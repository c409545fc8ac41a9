package sweeper_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pglocal"
	"github.com/queenmq/queen/services/tests/harness"
)

// A sweeper that ends between its claim and its fire leaves a lease behind, and
// nothing else: when it has run out, another one fires.
func TestSweeperKilledBetweenClaimAndFire(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	s := harness.StartSweeper(t, c.DB, append(through(proxy), shortLease)...)
	held := proxy.HoldStatement(fireCall)
	c.promise(t, c.backlog(t, 60, 6)...)
	await(t, held.Caught, "the fire")
	s.Kill()
	require.Positive(t, c.claimed(t))
	require.Zero(t, c.stored(t))
	key := harness.Value[string](t, c.DB, `SELECT min(timer_key) FROM queen.log_timers WHERE claim_token IS NOT NULL`)
	if a := c.Delete(t, timerPath(c.queue, key)); c.claimed(t) > 0 { // the lease may end at any moment
		require.Equal(t, "too_late", a.Object(t)["status"], a)
	}
	harness.StartSweeper(t, c.DB, shortLease)
	c.requireOnce(t)
}

// One that ends after its fire, without having heard of it, leaves nothing to do.
func TestSweeperKilledBetweenFireAndAnswer(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	s := harness.StartSweeper(t, c.DB, append(through(proxy), shortLease)...)
	held := proxy.HoldAnswer(fireCall)
	c.promise(t, c.backlog(t, 60, 6)...)
	await(t, held.Caught, "the answer of the fire")
	s.Kill()
	require.Positive(t, c.stored(t))
	s.Restart(t)
	c.requireOnce(t)
}

// One that lives on and does not know whether its fire has happened does not fire
// again. What it has not fired goes back at once, not at the end of the lease.
func TestSweeperLosesTheAnswerOfAFire(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	s := harness.StartSweeper(t, c.DB, append(through(proxy), "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS=10")...)
	for round := range 3 {
		lost := proxy.LoseAnswer(fireCall)
		var ops []object
		for i := range 40 {
			ops = append(ops, schedule(c.queue, fmt.Sprintf("round-%d-%02d", round, i), fmt.Sprintf("lane-%d", i%4), 0))
		}
		c.promise(t, ops...)
		await(t, lost, "the answer of the fire")
		c.fired(t)
	}
	c.requireOnce(t)
	harness.Eventually(t, patience, "what was delivered is counted", func() bool {
		return metricOf(t, s, `queen_timers_fired_total{result="fired"}`) == 120
	})
}

// A sweeper whose connections are reset in the middle of a fire.
func TestSweeperLosesItsConnectionInAFire(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	s := harness.StartSweeper(t, c.DB, append(through(proxy), "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS=10")...)
	held := proxy.HoldStatement(fireCall)
	c.promise(t, c.backlog(t, 60, 6)...)
	await(t, held.Caught, "the fire")
	proxy.Cut()
	claims := c.claimed(t)
	require.Positive(t, claims)
	require.Zero(t, c.stored(t))
	harness.Eventually(t, patience, "it notices", func() bool { return strings.Contains(s.Log(), "answer of a fire was lost") })
	began := time.Now()
	proxy.Heal()
	c.requireOnce(t)
	require.Less(t, time.Since(began), 20*time.Second, "long before the lease ends")
}

// PostgreSQL goes down while a fire waits in it for a lane, and comes back.
func TestPostgreSQLRestartedDuringAFire(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{pglocal.ModeFast, pglocal.ModeImmediate} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Server: true})
			c := newCell(stage.Broker)
			c.promise(t, c.backlog(t, 20, 4)...)
			harness.StartSweeper(t, c.DB, shortLease, "QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS=10")
			c.fired(t)
			release := holdLanes(t, c)
			c.promise(t, renamed("again-", c.backlog(t, 60, 4))...)
			awaitWaiting(t, c)
			require.NoError(t, stage.Server.Restart(t.Context(), mode))
			release()
			c.DB.Pool.Reset()
			c.requireOnce(t)
		})
	}
}

// holdLanes locks every lane of the test's queue until the function is called.
func holdLanes(t *testing.T, c *cell) func() {
	t.Helper()
	tx, err := c.DB.Pool.Begin(t.Context())
	require.NoError(t, err)
	tag, err := tx.Exec(t.Context(), `SELECT p.id FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
		WHERE q.name = $1 ORDER BY p.id FOR NO KEY UPDATE OF p`, c.queue)
	require.NoError(t, err)
	require.Positive(t, tag.RowsAffected())
	return func() { _ = tx.Rollback(t.Context()) } // the session may be gone
}

// awaitWaiting waits until a sweeper's fire waits for a lock.
func awaitWaiting(t *testing.T, c *cell) {
	t.Helper()
	harness.Eventually(t, patience, "the fire waits for a lane", func() bool {
		return harness.Value[bool](t, c.DB, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND query LIKE '%log_timers_fire_v1%')`)
	})
}

// renamed gives operations keys of their own.
func renamed(prefix string, ops []object) []object {
	for _, op := range ops {
		op["timerKey"] = prefix + op["timerKey"].(string)
	}
	return ops
}

// A broker that ends after a schedule was committed and before it has answered: the
// timer stands, and a client that asks again replaces it.
func TestBrokerKilledBetweenScheduleAndAnswer(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"the client gives up": false, "the client asks again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
			c := newCell(stage.Broker)
			ops := []object{schedule(c.queue, "a", "lane", 0), schedule(c.queue, "b", "lane", 1)}
			held := stage.Proxy.HoldAnswer(applyCall)
			answer := make(chan error, 1)
			go func() {
				_, err := c.operate(t.Context(), ops...)
				answer <- err
			}()
			await(t, held.Caught, "the answer of the schedule")
			c.Kill()
			require.Error(t, <-answer)
			require.Equal(t, 2, c.pending(t))
			c.Restart(t)
			if again {
				a, err := c.operate(t.Context(), ops...)
				require.NoError(t, err)
				for _, r := range a.Object(t)["results"].([]any) {
					require.Equal(t, "rescheduled", r.(object)["status"])
					c.note(t, r.(object), "lane")
				}
			} else {
				for _, key := range []string{"a", "b"} {
					peek := c.Get(t, timerPath(c.queue, key)).Object(t)
					require.Equal(t, true, peek["found"])
					c.note(t, peek, "lane")
				}
			}
			harness.StartSweeper(t, c.DB)
			c.requireOnce(t)
			c.requireOrder(t)
		})
	}
}

// The same for a transaction, which a precondition makes safe to repeat.
func TestBrokerKilledBetweenATransactionAndItsAnswer(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	c := newCell(stage.Broker)
	body := fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":%q,"payload":1}]}],
		"kv":[{"op":"putIfAbsent","ns":"gates","key":"g","value":true,"forever":true,"required":true}],
		"timers":[{"op":"schedule","queue":%q,"timerKey":"k","partition":"lane","delayMs":0,"txn":"t","payload":"e30="}]}`, c.queue+"-pushed", c.queue)
	held := stage.Proxy.HoldAnswer("log_transaction")
	answer := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), http.MethodPost, txPath, []byte(body), "Content-Type", "application/json")
		answer <- err
	}()
	await(t, held.Caught, "the answer of the transaction")
	c.Kill()
	require.Error(t, <-answer)
	c.Restart(t)
	o := c.Post(t, txPath, body).Object(t)
	require.Equal(t, []any{false, "kv_precondition", "exists"}, []any{o["success"], o["reason"], o["kvReason"]}, o)
	c.note(t, c.Get(t, timerPath(c.queue, "k")).Object(t), "lane")
	require.Equal(t, 1, c.stored(t), "the push happened once")
	harness.StartSweeper(t, c.DB)
	c.fired(t)
	require.Len(t, c.messages(t)["lane"], 1)
	require.Equal(t, 2, c.stored(t))
}

// A claim whose answer is lost keeps its timers from everybody until its lease ends,
// and no longer.
func TestSweeperLosesTheAnswerOfAClaim(t *testing.T) {
	t.Parallel()
	c := own(t)
	proxy := harness.NewProxy(t, c.DB)
	c.promise(t, c.backlog(t, 40, 4)...)
	lost := proxy.LoseAnswer(claimCall)
	began := time.Now()
	harness.StartSweeper(t, c.DB, append(through(proxy), shortLease)...)
	await(t, lost, "the answer of the claim")
	c.requireOnce(t)
	require.Greater(t, time.Since(began), 900*time.Millisecond, "nobody else touches them before")
}
