package store_test

import (
	"testing"

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
