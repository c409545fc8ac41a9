package e2e_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// requireNothingLeft requires that checks removed all that they had made.
func requireNothingLeft(t *testing.T, db *harness.Database) {
	t.Helper()
	require.Zero(t, harness.Value[int](t, db, `SELECT (SELECT count(*) FROM queen.queues WHERE name LIKE 'queen-check-%')
		+ (SELECT count(*) FROM queen.log_timers WHERE queue LIKE 'queen-check-%') + (SELECT count(*) FROM queen.kv WHERE namespace LIKE 'queen-check-%')`))
}

// steps are the statuses of a report in JSON.
func steps(t *testing.T, end harness.Ended) map[string]string {
	t.Helper()
	var report struct {
		Steps []struct{ Name, Status string }
	}
	require.NoError(t, json.Unmarshal([]byte(end.Stdout), &report), end)
	all := map[string]string{}
	for _, s := range report.Steps {
		all[s.Name] = s.Status
	}
	return all
}

func TestCheckOfAHealthyInstallation(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Sweepers: 1})
	url := s.Each[0].URL
	end := harness.Check(t, "", url+"/", "--timeout", "60s")
	require.Zero(t, end.Code, end)
	require.Empty(t, end.Stderr)
	require.Regexp(t, `(?s)^checking http://127\.0\.0\.1:\d+ with the queue queen-check-\S+\nok       health     +\d+\.\d ms  version \S+\nok       configure .*`+
		`\nok       push .*\nok       pop .*\nok       ack .*\nok       timer .*came \d+.*s after its time\nok       key .*\nok       delete .*\nall 8 steps passed in \S+s\n$`, end.Stdout)
	requireNothingLeft(t, s.DB)

	end = harness.Check(t, "", "--json", url)
	require.Zero(t, end.Code, end)
	require.Equal(t, map[string]string{
		"health": "ok", "configure": "ok", "push": "ok", "pop": "ok", "ack": "ok", "timer": "ok", "key": "ok", "delete": "ok",
	}, steps(t, end))
}

func TestCheckWithoutASweeperTellsOfIt(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	end := harness.Check(t, "", b.URL, "--timeout", "2s")
	require.Equal(t, 1, end.Code, end)
	require.Regexp(t, `\nFAILED   timer .*: does a sweeper run on this database, and is it ready\?\nok       key .*\nok       delete .*\n1 of 8 steps failed in \S+: timer\n$`, end.Stdout)
	requireNothingLeft(t, b.DB)
}

func TestCheckInMaintenanceSaysWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	pushesHeld(t, b)
	end := harness.Check(t, "", b.URL, "--timeout", "1s")
	require.Equal(t, 1, end.Code, end)
	require.Regexp(t, `\nFAILED   push .*maintenance.*\nskipped  pop +-  push did not pass\nskipped  ack`, end.Stdout)
	pushesFree(t, b)

	popsHeld(t, b)
	end = harness.Check(t, "", b.URL, "--timeout", "1s")
	require.Equal(t, 1, end.Code, end)
	require.Regexp(t, `\nok       push .*\nFAILED   pop .*pop maintenance`, end.Stdout)
	requireNothingLeft(t, b.DB)
}

func TestCheckThatIsInterruptedRemovesWhatItMade(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t)
	end := harness.Check(t, "ok       ack", b.URL) // while it waits for its timer
	require.Equal(t, 1, end.Code, end)
	require.Regexp(t, `\nFAILED   timer .*interrupted\n`, end.Stdout)
	require.Regexp(t, `\nok       cleanup .*removed what was left\n`, end.Stdout)
	requireNothingLeft(t, b.DB)
}

func TestCheckWithoutADatabase(t *testing.T) {
	t.Parallel()
	s := harness.StartSetup(t, harness.Setup{Brokers: 1, Proxy: true})
	s.Proxy.Cut()
	end := harness.Check(t, "", s.URL)
	require.Equal(t, 1, end.Code, end)
	require.Regexp(t, `\nFAILED   health .*the broker is unhealthy: its database is disconnected\nskipped  configure`, end.Stdout)
}
