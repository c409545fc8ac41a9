package harness

import (
	"slices"
	"testing"
)

// Maintainer is one running maintainer.
type Maintainer struct{ *worker }

// StartMaintainer runs a maintainer on a database until the test ends, and waits
// until it is ready. env entries are NAME=value. Its cycles follow each other every
// 100 ms unless they say otherwise.
func StartMaintainer(t testing.TB, db *Database, env ...string) *Maintainer {
	t.Helper()
	m := newMaintainer(t, db, env)
	m.start(t)
	return m
}

// LaunchMaintainer is StartMaintainer that does not wait for anything.
func LaunchMaintainer(t testing.TB, db *Database, env ...string) *Maintainer {
	t.Helper()
	m := newMaintainer(t, db, env)
	m.startBlind(t)
	return m
}

// Maintain runs the binary on a database with the given arguments to its end.
func Maintain(t testing.TB, db *Database, env []string, args ...string) Ended {
	t.Helper()
	m := newMaintainer(t, db, env)
	return execute(t, m.path, m.env, args...)
}

func newMaintainer(t testing.TB, db *Database, env []string) *Maintainer {
	t.Helper()
	return &Maintainer{newWorker(t, "maintainer", current.maintainer, db, slices.Concat([]string{"RETENTION_INTERVAL=100"}, env)...)}
}
