package sweeper_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// clocks are the functions by which PostgreSQL tells the time: their code, and whether
// they tell another one within a statement.
var clocks = map[string]struct{ code, volatility string }{
	"now": {"now", "STABLE"}, "transaction_timestamp": {"now", "STABLE"},
	"statement_timestamp": {"statement_timestamp", "STABLE"}, "clock_timestamp": {"clock_timestamp", "VOLATILE"},
}

// shiftClock moves the clock of one database against that of this machine, and with it
// against those of all services. The planner puts the bodies of such functions in the
// place of their calls, so that this also reaches defaults and procedures.
func shiftClock(t *testing.T, db *harness.Database, by time.Duration) {
	t.Helper()
	db.Exec(t, `CREATE SCHEMA machine`)
	db.Exec(t, `GRANT USAGE ON SCHEMA machine TO PUBLIC`)
	for name, c := range clocks {
		db.Exec(t, fmt.Sprintf(`CREATE FUNCTION machine.%s() RETURNS timestamptz LANGUAGE internal %s AS '%s'`, name, c.volatility, c.code))
		db.Exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION pg_catalog.%[1]s() RETURNS timestamptz LANGUAGE sql %[2]s
			AS $$ SELECT machine.%[1]s() + interval '%[3]d seconds' $$`, name, c.volatility, int(by.Seconds())))
	}
	db.Pool.Reset()
	for name := range clocks {
		require.WithinDuration(t, time.Now().Add(by), harness.Value[time.Time](t, db, `SELECT pg_catalog.`+name+`()`), time.Minute, name)
	}
}

// The clocks of broker and sweeper are wrong by an hour against that of the database.
// It alone decides: when a timer is due, how long a lease lasts, when a key expires.
func TestClockOfTheHostIsWrong(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"an hour behind": time.Hour, "an hour ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Sweepers: 1, SweeperEnv: []string{shortLease}})
			c := newCell(stage.Broker)
			shiftClock(t, c.DB, by)
			c.DB.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'queen-%'`)

			future := c.promise(t, schedule(c.queue, "future", "lane", 1500))[0]
			at, err := time.Parse(time.RFC3339Nano, future["deliverAt"].(string))
			require.NoError(t, err)
			require.WithinDuration(t, time.Now().Add(by), at, time.Minute, "an instant of the database")
			c.promise(t, c.backlog(t, 100, 5)...)
			harness.Eventually(t, patience, "what is due is fired", func() bool { return c.stored(t) >= 100 })
			peek := c.Get(t, timerPath(c.queue, "future")).Object(t)
			now := harness.Value[time.Time](t, c.DB, `SELECT clock_timestamp()`)
			require.True(t, peek["found"] == true || !now.Before(at), "not before its instant")
			c.requireOnce(t)
			c.requireOrder(t)
			require.False(t, harness.Value[time.Time](t, c.DB, `SELECT max(created_at) FROM queen.log_segments`).Before(at))

			// A lease is one of the database too.
			proxy := harness.NewProxy(t, c.DB)
			for _, s := range stage.Sweepers {
				s.Kill()
			}
			doomed := harness.StartSweeper(t, c.DB, append(through(proxy), shortLease)...)
			held := proxy.HoldStatement(fireCall)
			c.promise(t, renamed("leased-", c.backlog(t, 20, 5))...)
			await(t, held.Caught, "the fire")
			require.Positive(t, c.claimed(t))
			doomed.Kill()
			harness.StartSweeper(t, c.DB, shortLease)
			c.requireOnce(t)

			a, err := c.Call(t.Context(), http.MethodPut, "/api/v1/kv/clock/k", []byte(`{"value":1,"ttlSeconds":1}`), "Content-Type", "application/json")
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, a.Status, a)
			harness.Eventually(t, patience, "the key expires and is pruned", func() bool {
				return harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.kv`) == 0
			})
		})
	}
}
