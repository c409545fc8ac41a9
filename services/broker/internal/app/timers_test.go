package app

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/services/broker/internal/config"
)

func TestTimersAreServedWithinTheirLimits(t *testing.T) {
	t.Parallel()
	cfg := configFor(pgtest.NewConfig(t))
	cfg.Timers = config.Timers{MaxPayloadBytes: 3, MaxHorizonS: 60, MaxOps: 2}
	b := serve(t, cfg)
	for _, c := range []struct {
		delay, payload, rest string
		status               int
		answer               string
	}{
		{"60000", "QUJD", "", http.StatusOK, `"scheduled"`},
		{"60001", "QUJD", "", http.StatusForbidden, `"timers_horizon"`},
		{"60000", "QUJDRA==", "", http.StatusRequestEntityTooLarge, `"timers_payload_too_large"`},
		{"60000", "QUJD", `,{"op":"cancel","queue":"q","timerKey":"a"}`, http.StatusOK, `"absent"`},
		{"60000", "QUJD", `,{"op":"cancel"},{"op":"cancel"}`, http.StatusBadRequest, `"timers_too_many_ops"`},
	} {
		status, answer := b.call("POST", "/api/v1/timers", `[{"op":"schedule","queue":"q","timerKey":"k","txn":"t","delayMs":`+c.delay+
			`,"payload":"`+c.payload+`"}`+c.rest+`]`)
		require.Equal(t, c.status, status, answer)
		require.Contains(t, answer, c.answer)
	}
	_, metrics := b.call("GET", "/metrics/prometheus", "")
	for _, line := range []string{
		`queen_timers_operations_total{op="schedule",status="scheduled"} 1`, `queen_timers_operations_total{op="schedule",status="rescheduled"} 1`,
		`queen_timers_refused_total{reason="timers_horizon"} 1`, `queen_timers_payload_bytes_total 6`,
	} {
		require.Contains(t, metrics, line+"\n")
	}
	require.NoError(t, b.stop())
}
