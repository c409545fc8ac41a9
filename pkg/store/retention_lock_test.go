package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// TestLimitsComeWithTheLock looks at the last statement of the session that got
// the lock: between two of them its process may be stopped, and a session that
// holds the lock without limits would never lose it.
func TestLimitsComeWithTheLock(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	var last string
	b.one([]any{&last}, `SELECT a.query FROM pg_stat_activity AS a JOIN pg_locks AS l ON l.pid = a.pid
		WHERE l.locktype = 'advisory' AND l.objid = 737001 AND l.granted AND a.datname = current_database()`)
	require.Contains(t, last, "pg_try_advisory_lock")
	require.Contains(t, last, "idle_session_timeout")
}

func TestOthersAtWorkAreSeen(t *testing.T) {
	t.Parallel()
	b := setupKeep(t)
	busy, err := b.m.OthersAtWork(t.Context())
	require.NoError(t, err)
	require.False(t, busy, "idle sessions and itself do not count")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- b.db.Do(ctx, "work", func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `SELECT pg_sleep(60)`)
			return err
		})
	}()
	require.Eventually(t, func() bool {
		busy, err := b.m.OthersAtWork(t.Context())
		return err == nil && busy
	}, 30*time.Second, 5*time.Millisecond)
	cancel()
	require.Error(t, <-done)
}
