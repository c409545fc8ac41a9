package harness

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Sweeper is one running sweeper.
type Sweeper struct{ *worker }

// StartSweeper runs a sweeper on a database until the test ends, and waits until it is
// ready. env entries are NAME=value. No broker knows of it; those of a Setup do.
func StartSweeper(t testing.TB, db *Database, env ...string) *Sweeper {
	t.Helper()
	s := newSweeper(t, db, env)
	s.start(t)
	return s
}

// LaunchSweeper is StartSweeper that does not wait for anything.
func LaunchSweeper(t testing.TB, db *Database, env ...string) *Sweeper {
	t.Helper()
	s := newSweeper(t, db, env)
	s.startBlind(t)
	return s
}

// Sweep runs the binary on a database with the given arguments to its end.
func Sweep(t testing.TB, db *Database, env []string, args ...string) Ended {
	t.Helper()
	s := newSweeper(t, db, env)
	return execute(t, s.path, s.env, args...)
}

func newSweeper(t testing.TB, db *Database, env []string) *Sweeper {
	t.Helper()
	return &Sweeper{newWorker(t, "sweeper", current.sweeper, db, env...)}
}

// AwaitPeers waits until the sweeper is joined to so many brokers and sweepers.
func (s *Sweeper) AwaitPeers(t testing.TB, brokers, sweepers int) {
	t.Helper()
	for role, want := range map[string]int{"broker": brokers, "sweeper": sweepers} {
		series := fmt.Sprintf("queen_mesh_members{role=%q}", role)
		require.Eventually(t, func() bool { return s.Metric(t, series) == float64(want) }, bootTimeout, 10*time.Millisecond, series)
	}
}
