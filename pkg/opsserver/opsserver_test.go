package opsserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/queenmq/queen/pkg/config"
	"github.com/queenmq/queen/pkg/lifecycle"
	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/opsserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bundle struct {
	server *opsserver.Server
	broken atomic.Bool
	client *http.Client
}

// setup runs a server on a free port until the test ends.
func setup(t *testing.T, cfg opsserver.Config) *bundle {
	t.Helper()
	b := &bundle{client: &http.Client{Transport: &http.Transport{}}}
	sick := func(context.Context) error {
		if b.broken.Load() {
			return errors.New("no database")
		}
		return nil
	}
	cfg.Addr = "127.0.0.1:0"
	b.server = opsserver.New(cfg, opsserver.Deps{
		Log: logtest.New(t), Ready: sick, Health: sick,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a_metric 1\n") }),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done, started := make(chan error, 1), make(chan struct{})
	g := lifecycle.NewGroup(lifecycle.Config{Started: func() { close(started) }}, logtest.New(t))
	g.Add(b.server.Component())
	go func() { done <- g.Run(ctx) }()
	<-started
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		cancel()
		require.NoError(t, <-done)
	})
	return b
}

func (b *bundle) get(t *testing.T, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.server.Addr()+path, nil)
	require.NoError(t, err)
	res, err := b.client.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func TestRoutesReportTheStateOfTheService(t *testing.T) {
	t.Parallel()
	b := setup(t, opsserver.Config{})
	for _, tc := range []struct {
		broken bool
		path   string
		code   int
		body   string
	}{
		{false, "/live", 200, `{"status":"live"}` + "\n"},
		{false, "/ready", 200, `{"status":"ready"}` + "\n"},
		{false, "/health", 200, `{"status":"healthy"}` + "\n"},
		{false, "/metrics", 200, "a_metric 1\n"},
		{false, "/metrics/prometheus", 200, "a_metric 1\n"},
		{false, "/debug/pprof/", 404, `{"error":"Not Found"}` + "\n"},
		{true, "/live", 200, `{"status":"live"}` + "\n"},
		{true, "/ready", 503, `{"reason":"no database","status":"not ready"}` + "\n"},
		{true, "/health", 503, `{"reason":"no database","status":"not healthy"}` + "\n"},
	} {
		b.broken.Store(tc.broken)
		code, body := b.get(t, tc.path)
		require.Equal(t, tc.code, code, tc.path)
		require.Equal(t, tc.body, body, tc.path)
	}
}

func TestProfilesAreServedWhenAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, opsserver.Config{Profiles: true})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		code, _ := b.get(t, path)
		require.Equal(t, 200, code, path)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, opsserver.Config{})
	second := opsserver.New(opsserver.Config{Addr: b.server.Addr()}, opsserver.Deps{Log: logtest.New(t)})
	err := second.Start(t.Context())
	require.ErrorContains(t, err, b.server.Addr())
	require.ErrorContains(t, err, "change QUEEN_OPS_ADDR")
}

func TestEmptyAddressSwitchesTheListenerOff(t *testing.T) {
	t.Parallel()
	require.NoError(t, opsserver.Config{}.Validate())
	c := opsserver.New(opsserver.Config{}, opsserver.Deps{Log: logtest.New(t)}).Component()
	require.Nil(t, c.Start)
	require.Nil(t, c.Run)
}

func TestAddressWithoutPortIsRefused(t *testing.T) {
	t.Setenv("QUEEN_OPS_ADDR", "localhost")
	require.ErrorContains(t, config.Load(&opsserver.Config{}), `QUEEN_OPS_ADDR="localhost": host:port, :port or nothing (off) is allowed`)
}
