package sweeper_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// TestStatementsOfASweeper reads in the server's log what a sweeper has said to it,
// from its start to its end, with timers, keys and failures to deal with.
func TestStatementsOfASweeper(t *testing.T) {
	t.Parallel()
	stage := harness.StartSetup(t, harness.Setup{Brokers: 1, Server: true})
	c := newCell(stage.Broker)
	c.DB.Exec(t, `CREATE ROLE sweeper SUPERUSER LOGIN`)
	c.DB.Exec(t, `ALTER ROLE sweeper SET log_statement = 'all'`)
	c.DB.Exec(t, `ALTER SYSTEM SET log_line_prefix = '%u|'`)
	c.DB.Exec(t, `SELECT pg_reload_conf()`)
	breakLane(t, c.DB, "poison", "22000")
	c.put(t, "k", 3)
	c.expire(t, "")
	c.promise(t, c.backlog(t, 40, 4)...)
	(&cell{Broker: c.Broker, queue: c.queue}).promise(t, schedule(c.queue, "p", "poison", 0))
	s := harness.StartSweeper(t, c.DB, append(quickAttempts, "PG_USER=sweeper", "QUEEN_KV_USAGE_EVERY_MS=1000")...)
	c.requireOnce(t)
	harness.Eventually(t, patience, "everything was done once", func() bool {
		return c.keys(t) == 0 && s.Metric(t, "queen_timers_dlq_total") == 1 &&
			harness.Value[int](t, c.DB, `SELECT count(*) FROM queen.kv_usage`) == 1
	})
	s.Terminate(t)
	log, err := os.ReadFile(harness.Value[string](t, c.DB, `SHOW data_directory`) + ".log")
	require.NoError(t, err)
	said := ""
	for line := range strings.Lines(string(log)) {
		if strings.HasPrefix(line, "sweeper|") || strings.HasPrefix(line, "\t") {
			said += line
		}
	}
	for _, call := range []string{probeCall, claimCall, fireCall, "log_timers_fail_v1", "log_timers_dlq_v1", "kv_expire_step_v1", "kv_usage_step_v1"} {
		require.Contains(t, said, call)
	}
	require.NotRegexp(t, `(?i)\b(LISTEN|NOTIFY|pg_notify|pg_advisory\w*|pg_try_advisory\w*)\b`, said)
	// Its own clock is no argument: the claims leave the instant to the database.
	for _, call := range []string{probeCall, claimCall} {
		require.Regexp(t, call+`\(\$1, NULL,`, said)
	}
	for _, parameters := range regexp.MustCompile(`parameters: .*`).FindAllString(said, -1) {
		require.NotRegexp(t, `'\d{4}-\d\d-\d\d \d\d:`, parameters, "an instant")
	}
}

// The number of shards is part of the schema.
func TestShardsCannotBeSet(t *testing.T) {
	t.Parallel()
	c := own(t)
	s := harness.StartSweeper(t, c.DB, "QUEEN_SWEEPER_SHARDS=8")
	require.Regexp(t, `level=WARN msg="environment variable is not read".*QUEEN_SWEEPER_SHARDS`, s.Log())
	c.promise(t, c.backlog(t, 64, 4)...)
	c.requireOnce(t)
}
