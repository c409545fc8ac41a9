package harness

import (
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Maintainer is one running maintainer.
type Maintainer struct {
	*Client // of its operations listener
	DB      *Database

	*service
}

// StartMaintainer runs a maintainer on a database until the test ends, and waits
// until it is ready. env entries are NAME=value. Its cycles follow each other every
// 100 ms unless they say otherwise.
func StartMaintainer(t testing.TB, db *Database, env ...string) *Maintainer {
	t.Helper()
	m := newMaintainer(t, db, env)
	m.cleanup(t)
	require.NoError(t, m.boot(t.Context()))
	return m
}

// LaunchMaintainer is StartMaintainer that does not wait for anything.
func LaunchMaintainer(t testing.TB, db *Database, env ...string) *Maintainer {
	t.Helper()
	m := newMaintainer(t, db, env)
	m.cleanup(t)
	require.NoError(t, m.launch())
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
	path, err := current.maintainer()
	require.NoError(t, err)
	port, err := reservePort(t.Context())
	require.NoError(t, err)
	address := "127.0.0.1:" + strconv.Itoa(port)
	env = slices.Concat(cleanEnvironment(), db.env, []string{
		"QUEEN_OPS_ADDR=" + address, "QUEEN_SERVER_ID=" + address, "RETENTION_INTERVAL=100",
	}, env)
	url := "http://" + address
	return &Maintainer{Client: NewClient(url), DB: db, service: newService("maintainer", path, url+"/ready", env)}
}

// cleanup stops the maintainer when the test ends.
func (m *Maintainer) cleanup(t testing.TB) {
	m.log.watch(t, m.URL)
	t.Cleanup(func() {
		if err := m.stop(); err != nil {
			t.Error(err)
		}
		m.CloseIdle()
	})
}

// Restart starts the maintainer again on the same port.
func (m *Maintainer) Restart(t testing.TB) {
	t.Helper()
	m.CloseIdle()
	require.NoError(t, m.boot(t.Context()))
}

// Metric reads one series. A series with labels is named with them, as it stands in
// the text.
func (m *Maintainer) Metric(t testing.TB, name string) float64 {
	t.Helper()
	return metric(t, m.Client, name)
}

// Ready tells whether the maintainer is ready, or why it is not. One that does not
// listen is not.
func (m *Maintainer) Ready(t testing.TB) (bool, string) {
	t.Helper()
	a, err := m.Call(t.Context(), http.MethodGet, "/ready", nil)
	if err != nil {
		return false, err.Error()
	}
	return a.Status == http.StatusOK, string(a.Body)
}
