package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgtest"
)

// variableChild turns the test binary into the program under test.
const variableChild = "QUEEN_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(variableChild) == "1" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(pgtest.Main(m))
}

// TestAllServicesWorkTogether: a message goes through, a timer is delivered by the
// sweeper, and a stop leaves nothing behind.
func TestAllServicesWorkTogether(t *testing.T) {
	t.Parallel()
	db := pgtest.NewConfig(t)
	port := freePort(t)
	env := append(os.Environ(), variableChild+"=1",
		"PG_HOST="+db.Host, fmt.Sprint("PG_PORT=", db.Port), "PG_USER="+db.User, "PG_PASSWORD="+string(db.Password), "PG_DATABASE="+db.Database,
		"PORT="+port, "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_OPS_ADDR=", "QUEEN_SYNC_ENABLED=false", "DB_POOL_SIZE=4", "QUEEN_KV_POOL_SIZE=4")
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- together(ctx, self, env, os.Stdout, os.Stderr) }()

	base := "http://127.0.0.1:" + port
	require.Eventually(t, func() bool { status, _ := call(t, base+"/health", ""); return status == http.StatusOK }, time.Minute, 20*time.Millisecond)
	status, text := call(t, base+"/api/v1/push", `{"items":[{"queue":"first","payload":"hello"}]}`)
	require.Equal(t, http.StatusCreated, status, text)
	status, text = call(t, base+"/api/v1/pop/queue/first?autoAck=true&wait=true&timeout=10000", "")
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, `"hello"`)
	status, text = call(t, base+"/api/v1/timers", `{"operations":[{"op":"schedule","queue":"later","timerKey":"k","txn":"k","delayMs":10,"payload":"e30="}]}`)
	require.Equal(t, http.StatusOK, status, text)
	status, text = call(t, base+"/api/v1/pop/queue/later?autoAck=true&wait=true&timeout=30000", "")
	require.Equal(t, http.StatusOK, status, text)

	cancel()
	require.NoError(t, <-done)
	_, err = net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
	require.Error(t, err, "the broker runs on")
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	return port
}

// call sends a body, or asks without one. No answer is status 0.
func call(t *testing.T, url, body string) (status int, text string) {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(data)
}
