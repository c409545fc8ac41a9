package check

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func noEnv(string) string { return "" }

// serve runs what is to be checked.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.URL
}

func runCheck(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Command(args, noEnv, &out, &err)
	return code, out.String(), err.String()
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"flag provided but not defined: -quick":  {"--quick"},
		"one URL is allowed, not 2":              {"http://a", "http://b"},
		"begins with http:// or https://":        {"localhost:6632"},
		"no URL that begins with":                {"postgres://u:sesame@h/d"},
		"names a host":                           {"http://"},
		"the URL ends before any ? and #":        {"http://a/?b=c"},
		"the URL cannot be read":                 {"http://u:sesame%zz@a"},
		"--timeout 99ms":                         {"--timeout", "99ms"},
		"--timeout 1h0m1s":                       {"http://a", "--timeout", "1h1s"},
		`invalid value "soon" for flag -timeout`: {"--timeout=soon"},
		"the token must be one line":             {"--token", "a\nb"},
		"flag needs an argument: -token":         {"http://a", "--token"},
	} {
		code, stdout, stderr := runCheck(args...)
		require.Equal(t, exitUsage, code, args)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, want, args)
		require.Contains(t, stderr, usage, args)
		require.NotContains(t, stderr, "sesame", args)
	}
	code, stdout, stderr := runCheck("--help")
	require.Equal(t, exitOK, code)
	require.Equal(t, usage, stdout)
	require.Empty(t, stderr)
}

func TestWhereTheURLComesFrom(t *testing.T) {
	t.Parallel()
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	parsed := func(args ...string) Options {
		o, err := parse(args, getenv)
		require.NoError(t, err)
		return o
	}
	require.Equal(t, Options{URL: "http://localhost:6632", Timeout: defaultTimeout}, parsed())
	env["PORT"] = "7000"
	require.Equal(t, "http://localhost:7000", parsed().URL)
	env["QUEEN_URL"], env["QUEEN_TOKEN"] = "https://queen.example.com/base/", "pass"
	require.Equal(t, "https://queen.example.com/base", parsed().URL)
	require.Equal(t, Options{URL: "http://a", Timeout: minTimeout, Token: "other", JSON: true},
		parsed("--json", "http://a", "--timeout", "100ms", "--token", "other"))
	require.Equal(t, Options{URL: "http://a", Timeout: maxTimeout, Token: "pass"}, parsed("--timeout=1h", "http://a/"))
}

func TestWhatIsNoQueenIsCalledThat(t *testing.T) {
	t.Parallel()
	for want, handler := range map[string]http.HandlerFunc{
		"answered 200 with text/html, which a broker does not: is this a Queen?": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "<!doctype html><title>Welcome</title>")
		},
		"answered 404 with text/plain, which a broker does not: is this a Queen?": http.NotFound,
		"answered 200 with nothing in it, which a broker does not":                func(http.ResponseWriter, *http.Request) {},
		"answered 200 without a broker's health: is this a Queen?": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"status":"UP"}`)
		},
		"was sent elsewhere (302, to https://elsewhere.example/): give the URL of the broker itself": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
		},
		"was refused (401): Authentication required; --token or QUEEN_TOKEN": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"Authentication required"}`)
		},
		"answered 502: upstream": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprint(w, `{"error":"upstream"}`)
		},
	} {
		code, stdout, _ := runCheck(serve(t, handler))
		require.Equal(t, exitFailed, code, want)
		require.Contains(t, stdout, want)
		require.NotContains(t, stdout, "cleanup", "nothing was made")
	}
}

func TestAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	code, stdout, _ := runCheck(gone.URL)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stdout, "connection refused")

	slow := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	code, stdout, _ = runCheck(slow, "--timeout", "100ms")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stdout, "no answer within 100ms")
}

// broken is a broker that refuses pushes, and remembers what it was asked.
type broken struct {
	mu    sync.Mutex
	asked []string
	busy  int // answers of 429 before the first push is looked at
}

func (b *broken) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
	switch {
	case r.URL.Path == "/health":
		fmt.Fprint(w, `{"status":"healthy","database":"connected","version":"9.9"}`)
	case r.URL.Path == "/api/v1/push" && b.busy > 0:
		b.busy--
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"error":"too busy"}`)
	case r.Method == http.MethodDelete:
		fmt.Fprint(w, `{"status":"cancelled","deleted":true}`)
	case r.URL.Path == "/api/v1/configure":
		fmt.Fprint(w, `{}`)
	default:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w, `[{"status":"failed","error":"the disk is full"}]`)
	}
}

func TestAFailedStepLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := &broken{busy: 1}
	code, stdout, _ := runCheck("--token", "pass", serve(t, b.ServeHTTP))
	require.Equal(t, exitFailed, code)
	require.Contains(t, stdout, "version 9.9\n")
	require.Contains(t, stdout, "answered 500: the disk is full\n")
	require.Contains(t, stdout, "3 of 8 steps failed")
	asked := strings.Join(b.asked, "\n")
	require.Equal(t, 2, strings.Count(asked, "POST /api/v1/push"), "it came again when it was told to")
	for _, path := range []string{"/api/v1/kv/queen-check-", "/api/v1/timers/queen-check-", "/api/v1/resources/queues/queen-check-"} {
		require.Contains(t, asked, "DELETE "+path)
	}
	require.Equal(t, len(b.asked), strings.Count(asked, " Bearer pass"))
}

func TestJSONIsComparedByValue(t *testing.T) {
	t.Parallel()
	require.True(t, sameJSON([]byte(`{"a":1, "b":[2]}`), []byte(`{"b":[2],"a":1}`)))
	require.False(t, sameJSON([]byte(`{"a":1}`), []byte(`{"a":2}`)))
	require.False(t, sameJSON([]byte(``), []byte(``)))
}

func TestRetryAfterIsBelievedWithinReason(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": time.Second, "0": time.Second, "2": 2 * time.Second, "9999": maxRetryAfter, "soon": time.Second} {
		require.Equal(t, want, answer{header: http.Header{"Retry-After": {text}}}.retryAfter(), text)
	}
}
