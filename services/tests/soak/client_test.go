package soak

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plan answers one request after the other: a status, or a connection that ends (0).
func plan(t *testing.T, statuses ...int) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := statuses[min(int(n.Add(1)), len(statuses))-1]
		if status == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"error":"busy"}`))
	}))
	t.Cleanup(srv.Close)
	return srv, &n
}

func ask(t *testing.T, patience time.Duration, urls ...string) (reply, Verdict, error) {
	t.Helper()
	cfg := Config{URLs: urls, Patience: patience}
	tally := newTally()
	c := newClient(&cfg, tally)
	defer c.http.CloseIdleConnections()
	got, err := c.ask(t.Context(), request{"push", http.MethodPost, "/", []byte("{}"), http.StatusCreated})
	return got, tally.verdict(), err
}

func TestClientRepeatsWhatClientsRepeat(t *testing.T) {
	t.Parallel()
	srv, _ := plan(t, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusCreated)
	got, v, err := ask(t, time.Minute, srv.URL)
	require.NoError(t, err)
	require.Zero(t, got.lost, "nothing happened before")
	require.True(t, v.OK)
	require.Equal(t, map[string]map[string]int64{"push": {"429": 1, "503": 1, "201": 1}}, v.Answers)
	require.Equal(t, map[string]int64{"push 429 busy": 1, "push 503 busy": 1}, v.Deferred)
}

func TestClientKnowsWhenSomethingMayHaveHappened(t *testing.T) {
	t.Parallel()
	srv, _ := plan(t, 0, 0, http.StatusCreated)
	got, v, err := ask(t, time.Minute, srv.URL)
	require.NoError(t, err)
	require.Equal(t, 2, got.lost)
	require.True(t, v.OK)
	require.Equal(t, map[string]map[string]int64{"push": {kindClosed: 2}}, v.Errors)
}

func TestClientGoesToTheNextAddress(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	srv, _ := plan(t, http.StatusCreated)
	got, v, err := ask(t, time.Minute, "http://"+ln.Addr().String(), srv.URL)
	require.NoError(t, err)
	require.Zero(t, got.lost)
	require.True(t, v.OK)
	require.Equal(t, map[string]map[string]int64{"push": {kindRefused: 1}}, v.Errors)
}

func TestClientTellsOfAnswersThatNobodyExpects(t *testing.T) {
	t.Parallel()
	srv, _ := plan(t, http.StatusInternalServerError, http.StatusCreated)
	_, v, err := ask(t, time.Minute, srv.URL)
	require.NoError(t, err)
	require.False(t, v.OK)
	require.Equal(t, map[string]int64{"push 500": 1}, v.Unexpected)
}

func TestClientGivesUp(t *testing.T) {
	t.Parallel()
	srv, n := plan(t, http.StatusServiceUnavailable)
	_, v, err := ask(t, 100*time.Millisecond, srv.URL)
	require.ErrorIs(t, err, errGivenUp)
	require.Greater(t, n.Load(), int64(1))
	require.False(t, v.OK)
	require.EqualValues(t, 1, v.Unanswered)
}

func TestClientSeesRepetitionsOfTheTransport(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(srv.Close)
	cfg := Config{URLs: []string{srv.URL}, Patience: time.Minute}
	tally := newTally()
	c := newClient(&cfg, tally)
	defer c.http.CloseIdleConnections()
	for want := range 2 {
		got, err := c.ask(context.WithoutCancel(t.Context()), request{"pop", http.MethodGet, "/", nil, http.StatusOK})
		require.NoError(t, err)
		require.Equal(t, want, got.lost)
	}
	require.Equal(t, map[string]map[string]int64{"pop": {kindClosed: 1}}, tally.verdict().Errors)
}

func TestConfigHasBounds(t *testing.T) {
	t.Parallel()
	good := Default()
	good.URLs, good.Queue = []string{"http://localhost:6632/"}, "q"
	require.NoError(t, good.Validate())
	require.Equal(t, "http://localhost:6632", good.URLs[0])
	for want, spoil := range map[string]func(c *Config){
		"lanes=0: 1 to 100000 is allowed":                     func(c *Config) { c.Lanes = 0 },
		"rate=-1: 0 to 1e+06 is allowed":                      func(c *Config) { c.Rate = -1 },
		"lease=999ms: 1s to 1h0m0s is allowed":                func(c *Config) { c.Lease = 999 * time.Millisecond },
		"urls: at least one is needed":                        func(c *Config) { c.URLs = nil },
		`urls: "localhost:6632": http://host:port is allowed`: func(c *Config) { c.URLs = []string{"localhost:6632"} },
		"queue: a name is needed":                             func(c *Config) { c.Queue = "" },
		"patience=10s: more than the lease (10s)":             func(c *Config) { c.Patience = c.Lease },
	} {
		bad := good
		spoil(&bad)
		require.ErrorContains(t, bad.Validate(), want)
	}
}
