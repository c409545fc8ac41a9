package harness

import (
	"context"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// worker is one running service without clients.
type worker struct {
	*Client // of its operations listener
	DB      *Database

	*service
}

// newWorker prepares a worker. env entries are NAME=value; later ones win.
func newWorker(t testing.TB, name string, binary func() (string, error), db *Database, env ...string) *worker {
	t.Helper()
	path, err := binary()
	require.NoError(t, err)
	address, err := reserveAddress(t.Context())
	require.NoError(t, err)
	env = slices.Concat(cleanEnvironment(), db.env, []string{"QUEEN_OPS_ADDR=" + address, "QUEEN_SERVER_ID=" + address}, env)
	url := "http://" + address
	return &worker{Client: NewClient(url), DB: db, service: newService(name, path, url+"/ready", env)}
}

// start runs the worker until the test ends, and waits until it is ready.
func (w *worker) start(t testing.TB) {
	t.Helper()
	w.cleanup(t)
	require.NoError(t, w.boot(t.Context()))
}

// startBlind is start that does not wait for anything.
func (w *worker) startBlind(t testing.TB) {
	t.Helper()
	w.cleanup(t)
	require.NoError(t, w.launch())
}

// cleanup stops the worker when the test ends.
func (w *worker) cleanup(t testing.TB) {
	w.log.watch(t, w.URL)
	t.Cleanup(func() {
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		w.CloseIdle()
	})
}

// Restart starts the worker again on the same port.
func (w *worker) Restart(t testing.TB) {
	t.Helper()
	w.CloseIdle()
	require.NoError(t, w.boot(t.Context()))
}

// Metric reads one series. A series with labels is named with them, as it stands in
// the text.
func (w *worker) Metric(t testing.TB, name string) float64 {
	t.Helper()
	return metric(t, w.Client, name)
}

// Ready tells whether the worker is ready, or why it is not. One that does not listen
// is not.
func (w *worker) Ready(t testing.TB) (bool, string) {
	t.Helper()
	return ready(t.Context(), w.Client)
}

// ready asks an operations listener.
func ready(ctx context.Context, c *Client) (bool, string) {
	a, err := c.Call(ctx, http.MethodGet, "/ready", nil)
	if err != nil {
		return false, err.Error()
	}
	return a.Status == http.StatusOK, string(a.Body)
}
