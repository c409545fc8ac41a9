package e2e_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// lines are those of a log of JSON with a message.
func lines(t *testing.T, log, message string) (out []object) {
	t.Helper()
	for text := range strings.Lines(log) {
		var line object
		require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		if line["msg"] == message {
			out = append(out, line)
		}
	}
	return out
}

// addUp adds a figure of lines up.
func addUp(lines []object, key string) (sum float64) {
	for _, line := range lines {
		sum += line[key].(float64)
	}
	return sum
}

const (
	password = "a-password-nobody-may-read"
	payload  = "a-payload-nobody-may-read"
)

func TestLogs(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_LOG_JSON=true", "QUEEN_LOG_RATES_MS=1", "QUEEN_LOG_TOPN_QUEUES=1", "LOG_LEVEL=debug",
		"QUEEN_SYNC_SECRET="+password, "OTEL_EXPORTER_OTLP_HEADERS=authorization="+password, "OTEL_TRACES_EXPORTER=none")
	q, busy := queueName(t), queueName(t)+"-busy"

	for _, block := range []string{"server", "postgres", "engine", "kv", "rates", "telemetry"} {
		require.Len(t, lines(t, b.Log(), "config: "+block), 1, block)
	}
	require.EqualValues(t, 1000, lines(t, b.Log(), "config: rates")[0]["QUEEN_LOG_RATES_MS"], "the least")
	require.Regexp(t, "^<set", lines(t, b.Log(), "config: mesh")[0]["QUEEN_SYNC_SECRET"])

	b.PushQueued(t, harness.Item{Queue: q, Payload: payload})
	b.PushTogether(t, busy, "p", 20)
	m := b.Pop(t, q, "").Messages[0]
	require.Equal(t, http.StatusOK, b.Post(t, "/api/v1/ack", mustJSON(t, object{"transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": m.LeaseID, "status": "completed"})).Status)
	require.Eventually(t, func() bool {
		r := lines(t, b.Log(), "rates")
		return addUp(r, "push_s") > 20 && addUp(r, "pop_s") > 0 && addUp(r, "ack_s") > 0 && len(lines(t, b.Log(), "sizes")) > 0
	}, arrival, 10*time.Millisecond)
	told := lines(t, b.Log(), "rates")
	for _, key := range []string{
		"push_s", "pop_s", "ack_s", "push_ms_p50", "push_ms_p99", "parked", "pool_waiting",
		"adm_budget", "adm_mode", "adm_lanes", "trains_s", "cycle_ms", "oldest_wait_ms", "adm_last",
	} {
		require.Contains(t, told[0], key)
	}
	require.Contains(t, lines(t, b.Log(), "sizes")[0], "rss_gb")
	for _, line := range lines(t, b.Log(), "queue rates") {
		require.Contains(t, []any{q, busy}, line["queue"])
	}
	require.LessOrEqual(t, len(lines(t, b.Log(), "queue rates")), len(told), "one queue a line")

	// Whoever does nothing says nothing.
	quiet := time.Now().Add(2500 * time.Millisecond)
	var before int
	require.Eventually(t, func() bool {
		before = len(lines(t, b.Log(), "rates"))
		return time.Now().After(quiet)
	}, arrival, 100*time.Millisecond)
	require.Eventually(t, func() bool { return time.Now().After(quiet.Add(1500 * time.Millisecond)) }, arrival, 100*time.Millisecond)
	require.Len(t, lines(t, b.Log(), "rates"), before)
	require.NotContains(t, b.Log(), payload)
	require.NotContains(t, b.Log(), password)
}
