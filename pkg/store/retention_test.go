package store_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/queenmq/queen/pkg/store"
)

func TestOneSessionLeads(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	other := b.session()
	got, err := other.TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, got, "held by the first")
	require.Error(t, other.Unlock(t.Context()), "it holds nothing")

	require.NoError(t, b.m.Unlock(t.Context()))
	got, err = other.TryLock(t.Context())
	require.NoError(t, err)
	require.True(t, got)
}

func TestTheLockDiesWithItsSession(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	b.m.Close(t.Context())
	other := b.session()
	require.Eventually(t, func() bool {
		got, err := other.TryLock(t.Context())
		return err == nil && got
	}, 10*time.Second, 10*time.Millisecond)
	_, err := b.m.Plan(t.Context())
	require.Error(t, err, "a closed session leads nothing")
	require.True(t, b.m.Closed())
	require.False(t, other.Closed())
}

// A leader that hangs must lose its lock, and one step must not wait for long.
func TestALeadersSessionHasLimits(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	for name, want := range map[string]string{
		"idle_session_timeout": "10s", "lock_timeout": "1s", "statement_timeout": "5s", "synchronous_commit": "off",
	} {
		got, err := b.m.Setting(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	require.NoError(t, b.m.Unlock(t.Context()))
	got, err := b.m.Setting(t.Context(), "idle_session_timeout")
	require.NoError(t, err)
	require.Equal(t, "0", got, "it may wait for its next turn")
}

func TestAStatementThatTakesTooLongCostsNoLeadership(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	require.NoError(t, b.m.Run(t.Context(), `SET statement_timeout = '20ms'`))
	err := b.m.Run(t.Context(), `SELECT pg_sleep(60)`)
	require.True(t, store.TimedOut(err), "%v", err)
	require.False(t, store.Locked(err))
	require.NoError(t, b.m.Run(t.Context(), `SET statement_timeout = '5s'`))
	_, err = b.m.Plan(t.Context())
	require.NoError(t, err)
	got, err := b.session().TryLock(t.Context())
	require.NoError(t, err)
	require.False(t, got)
}

// Clocks are shared: of all who ask, one is told that it is time.
func TestAClockIsDueOnceForAllThatAsk(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	sessions := []*store.MaintenanceSession{b.m, b.session(), b.session(), b.session()}
	ask := func(every time.Duration) int {
		var group errgroup.Group
		var due atomic.Int64
		for _, m := range sessions {
			group.Go(func() error {
				ok, err := m.ClockDue(t.Context(), "cleanup", every)
				if ok {
					due.Add(1)
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		return int(due.Load())
	}
	require.Equal(t, 1, ask(time.Hour), "never asked before")
	require.Zero(t, ask(time.Hour))
	b.exec(`UPDATE queen.system_state SET updated_at = now() - interval '59 minutes' WHERE key = 'maintenance_clock:cleanup'`)
	require.Zero(t, ask(time.Hour))
	b.exec(`UPDATE queen.system_state SET updated_at = now() - interval '60 minutes' WHERE key = 'maintenance_clock:cleanup'`)
	require.Equal(t, 1, ask(time.Hour))
	b.exec(`UPDATE queen.system_state SET updated_at = now() + interval '1 day' WHERE key = 'maintenance_clock:cleanup'`)
	require.Equal(t, 1, ask(time.Hour), "the server's clock stepped back")
	due, err := b.m.ClockDue(t.Context(), "walk", time.Hour)
	require.NoError(t, err)
	require.True(t, due, "each name has its own")
}

func TestPositionsOutliveTheirSession(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	at, err := b.m.Position(t.Context(), "walk")
	require.NoError(t, err)
	require.Equal(t, uuid.Nil, at, "never kept")
	for _, id := range []uuid.UUID{uuid.New(), uuid.New()} {
		require.NoError(t, b.m.SetPosition(t.Context(), "walk", id))
		at, err = b.session().Position(t.Context(), "walk")
		require.NoError(t, err)
		require.Equal(t, id, at)
	}
	at, err = b.m.Position(t.Context(), "other")
	require.NoError(t, err)
	require.Equal(t, uuid.Nil, at)
}
