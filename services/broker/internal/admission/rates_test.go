package admission

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/rates"
)

func TestTheLogTellsWhoHasSlotsAndWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Config{Slots: 1, Min: 1, Init: 1, Max: 1}, noop.Meter{})
		require.NoError(t, err)
		release, err := g.Acquire(t.Context(), Push)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = g.Acquire(ctx, Pop) }()
		synctest.Wait()
		time.Sleep(250 * time.Millisecond)

		log, lines := logtest.NewRecorder()
		var sent int64
		r := rates.New(rates.Config{}, log, g.Rates, func(s *rates.Sample) {
			s.Total("sent_s", sent)
			sent++
		})
		over, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(over) }()
		time.Sleep(rates.EveryFloor)
		synctest.Wait()
		stop()
		require.NoError(t, <-done)
		require.Contains(t, lines.String(), `adm_budget=1 adm_mode=adaptive adm_lanes.push="1/1 +0" adm_lanes.pop="0/1 +1" `+
			`adm_lanes.ack="0/1 +0" adm_lanes.maint="0/1 +0" trains_s=0 cycle_ms=0 oldest_wait_ms=1250 adm_last=init`)
		cancel()
		release()
		synctest.Wait()
	})
}

func TestTheLogTellsWhyTheBudgetChanged(t *testing.T) {
	t.Parallel()
	for what, reason := range map[string]string{grow: "saturated", shrink: "oldest-age", pin: "nosync-detected", unpin: "signal-restored"} {
		require.Equal(t, reason, reasons[what])
	}
	l := newLaw(Config{Min: 1, Init: 1, Max: 8, NoSync: 8})
	l.step(sight{exhausted: true})
	require.Equal(t, grow, l.last)
	l.step(sight{})
	require.Equal(t, grow, l.last, "it is the last one, not that of the last tick")
}
