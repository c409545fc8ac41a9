package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/soak"
)

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"-h"}, exitOK, "-lanes"},
		{[]string{"-lanes", "0"}, exitUsage, "lanes=0: 1 to 100000 is allowed"},
		{[]string{"-urls", "http://a:1,b"}, exitUsage, `urls: "b"`},
		{[]string{"-nonsense"}, exitUsage, "-nonsense"},
		{[]string{"more"}, exitUsage, `unknown arguments ["more"]`},
	} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, tc.code, run(tc.args, &stdout, &stderr), tc.args)
		require.Contains(t, stderr.String(), tc.stderr)
		require.Empty(t, stdout.String())
	}
	cfg, err := parse([]string{"-urls", "http://a:1,http://b:2/", "-for", "5s", "-timers=false"}, &bytes.Buffer{})
	require.NoError(t, err)
	require.Equal(t, []string{"http://a:1", "http://b:2"}, cfg.URLs)
	require.Equal(t, 5*time.Second, cfg.For)
	require.False(t, cfg.Timers)
	require.NotEmpty(t, cfg.Queue)
}

// TestABadVerdictIsTold runs against a server that stores nothing.
func TestABadVerdictIsTold(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(srv.Close)
	var stdout, stderr bytes.Buffer
	code := run([]string{
		"-urls", srv.URL, "-for", "50ms", "-lanes", "1", "-pushers", "1", "-consumers", "1", "-timers=false", "-counters", "0",
		"-lease", "1s", "-patience", "1100ms", "-poll", "10ms",
	}, &stdout, &stderr)
	require.Equal(t, exitBad, code)
	var v soak.Verdict
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &v))
	require.False(t, v.OK)
	require.Positive(t, v.Unexpected["push 500"])
	require.Zero(t, v.Pushed)
}
