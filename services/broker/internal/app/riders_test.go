package app

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/services/broker/internal/config"
)

// Transactions are bound by the limits, quotas and switches of the routes.
func TestRidersAreServedWithinTheirLimits(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.NewConfig(t))
	cfg.KV = config.KV{MaxOpsPerCall: 2, MaxKeysPerCall: 9, MaxValueBytes: 9, MaxKeyBytes: 9}
	cfg.Timers = config.Timers{MaxPayloadBytes: 3, MaxHorizonS: 60, MaxOps: 2}
	b := serve(t, cfg)
	const (
		once   = `{"op":"putIfAbsent","ns":"n","key":"once","value":1,"forever":true,"required":true}`
		get    = `{"op":"get","ns":"n","key":"k"}`
		cancel = `{"op":"cancel","queue":"later","timerKey":"none"}`
		gate   = `{"operations":[{"type":"push","items":[{"queue":"q","payload":1}]}],"kv":[` + once + `]}`
		off    = `"results":[]`
	)
	timer := func(delay string) string {
		return `{"timers":[{"op":"schedule","queue":"later","timerKey":"k","delayMs":` + delay + `,"txn":"t","payload":"MQ=="}]}`
	}
	for _, c := range []struct {
		path, body string
		status     int
		parts      []string
	}{
		{"transaction", gate, http.StatusOK, []string{`"success":true`, `{"index":1,"type":"kv","opIndex":0,`, `"applied":true`}},
		{"transaction", gate, http.StatusOK, []string{`"success":false,"ok":false,"reason":"kv_precondition"`, `"failedIndex":1,"kvReason":"exists","version":`, `"value":1,"results":[]`}},
		{"transaction", timer("60000"), http.StatusOK, []string{`{"index":0,"type":"timer","opIndex":0,`, `"scheduled"`}},
		{"transaction", timer("60001"), http.StatusOK, []string{`"reason":"timer_horizon_exceeded"`, off}},
		{"transaction", `{"kv":[` + get + `,` + get + `],"timers":[` + cancel + `]}`, http.StatusOK, []string{`"success":true`, `{"index":2,"type":"timer","opIndex":0,`}},
		{"transaction", `{"kv":[` + get + `,` + get + `,` + get + `]}`, http.StatusBadRequest, []string{`"reason":"bad_request","error":"kv_too_many_ops: `, off}},
		{"transaction", `{"timers":[` + cancel + `,{},{}]}`, http.StatusBadRequest, []string{`"error":"timers_too_many_ops: `, off}},
		{"transaction", `{"operations":[{"type":"kv"}]}`, http.StatusBadRequest, []string{`"reason":"bad_request"`, "TOP LEVEL"}},
		{"transaction", `{"kv":{}}`, http.StatusBadRequest, []string{`"reason":"bad_request"`, "TOP LEVEL"}},
		{"transaction", `{"kv":[{"op":"getPrefix","ns":"n","prefix":"p"}]}`, http.StatusBadRequest, []string{`"reason":"bad_request"`, "getPrefix"}},

		{"system/kv-timers", `{"kv":false,"timersSchedule":false}`, http.StatusOK, []string{`"kvEnabled":false`}},
		{"transaction", `{"kv":[` + get + `]}`, http.StatusForbidden, []string{`"success":false,"reason":"kv_disabled","error":"kv_disabled","detail":"`, off}},
		{"transaction", timer("0"), http.StatusForbidden, []string{`"success":false,"reason":"timers_disabled","error":"timers_disabled","detail":"`, off}},
		{"transaction", `{"timers":[` + cancel + `]}`, http.StatusOK, []string{`"absent"`}},
		{"transaction", `{"operations":[{"type":"push","queue":"q"}],"kv":[],"timers":null}`, http.StatusOK, []string{`"success":true`}},
	} {
		status, answer := b.call("POST", "/api/v1/"+c.path, c.body)
		require.Equal(t, c.status, status, "%s: %s", c.body, answer)
		for _, part := range c.parts {
			require.Contains(t, answer, part)
		}
	}
	_, metrics := b.call("GET", "/metrics/prometheus", "")
	for _, line := range []string{
		`queen_transaction_bundles_total{outcome="kv_precondition"} 1`, `queen_transaction_bundles_total{outcome="held_back"} 2`,
		`queen_transaction_riders_total{kind="kv"} 3`, `queen_transaction_riders_total{kind="timer"} 3`,
	} {
		require.Contains(t, metrics, line+"\n")
	}
	require.NoError(t, b.stop())
}
