package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/pop"
)

const noRoute = `{"error":"Not Found","code":"no_such_route"}`

func TestUnknownRoutesAnswerTheEnvelope(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tc := range []struct{ method, path string }{
		{"GET", "/api/v1/nothing"}, {"POST", "/api/v1/push/"}, {"POST", "/api/v2/push"}, {"GET", "/api/"},
		{"POST", "/streams/v1/query"}, {"GET", "/auth/you"}, {"POST", "/auth/login/x"}, {"POST", "/internal/api/reload"}, {"PUT", "/"},
		{"POST", "/assets/x.js"}, {"DELETE", "/health/x"}, {"GET", "/API/v1/pop"}, {"POST", "/api/v1/%70ush"},
		{"GET", "/api/v1/resources/queues/q/depths"}, {"POST", "/api/v1/resources/queues/q/depth/x"},
		{"DELETE", "/api/v1/resources/queues/a/b"}, {"PATCH", "/api/v1/resources/queues/a/b"}, {"GET", "/api/v1/pop/queue/a/b"},
		{"GET", "/api/v1/pop/queue/a/b/partition/c"}, {"POST", "/api/v1/lease/a/b/extend"},
		{"OPTIONS", "/api/v1/nothing"}, {"BREW", "/api/v1/nothing"},
	} {
		b.want(tc.method, tc.path, "", http.StatusNotFound, noRoute)
	}
}

func TestWrongMethodNamesTheRightOnes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tc := range []struct{ method, path, allow string }{
		{"GET", "/api/v1/push", "POST"}, {"PUT", "/api/v1/push", "POST"}, {"OPTIONS", "/api/v1/push", "POST"},
		{"BREW", "/api/v1/push", "POST"}, {"POST", "/api/v1/pop", "GET"}, {"POST", "/api/v1/pop/queue/q", "GET"},
		{"DELETE", "/api/v1/pop/queue/q/partition/a%2Fb", "GET"}, {"GET", "/api/v1/ack", "POST"},
		{"GET", "/api/v1/ack/batch", "POST"}, {"GET", "/api/v1/lease/l/extend", "POST"}, {"GET", "/api/v1/transaction", "POST"},
		{"GET", "/api/v1/configure", "POST"}, {"POST", "/api/v1/resources/queues", "GET, HEAD"},
		{"PATCH", "/api/v1/resources/queues/q", "DELETE, GET, HEAD"}, {"POST", "/api/v1/dlq", "DELETE, GET, HEAD"},
		{"POST", "/health", "GET, HEAD"}, {"POST", "/status", "GET, HEAD"}, {"POST", "/metrics", "GET, HEAD"},
		{"DELETE", "/metrics/prometheus", "GET, HEAD"},
	} {
		res, body := b.call(tc.method, tc.path, "")
		require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode, "%s %s", tc.method, tc.path)
		require.Equal(t, `{"error":"method not allowed"}`, body)
		require.ElementsMatch(t, strings.Split(tc.allow, ", "), strings.Split(res.Header.Get("Allow"), ", "), "%s %s", tc.method, tc.path)
		require.Equal(t, "application/json", res.Header.Get("Content-Type"))
	}
}

// somewhere is a path that the route matches.
func somewhere(route string) string {
	return strings.ReplaceAll(param.ReplaceAllString(route, "00000000-0000-0000-0000-000000000001"), "*", "rest")
}

// matching are the methods of every route that matches a path, and by how many
// patterns.
func matching(routes []httpapi.Route, path string) (methods []string, patterns int) {
	seen := map[string]bool{}
	for _, r := range routes {
		pattern := strings.ReplaceAll(param.ReplaceAllString(regexp.QuoteMeta(r.Path), "[^/]+"), `\*`, ".*")
		if !regexp.MustCompile("^" + pattern + "$").MatchString(path) {
			continue
		}
		seen[r.Path] = true
		methods = append(methods, r.Method)
		if r.Method == http.MethodGet && r.Access != httpapi.ReadWrite { // all but pops
			methods = append(methods, http.MethodHead)
		}
	}
	return methods, len(seen)
}

func routes(t *testing.T) []httpapi.Route {
	t.Helper()
	api, err := httpapi.New(httpapi.Config{MaxBodyBytes: 1, MaxInflightBytes: 1}, httpapi.Deps{Meter: noop.Meter{}})
	require.NoError(t, err)
	return api.Routes()
}

// What is true of every route needs no list of them.
func TestMethodsThatAPathDoesNotHaveAreRefused(t *testing.T) {
	t.Parallel()
	b, all := setup(t), routes(t)
	for _, r := range all {
		path := somewhere(r.Path)
		known, patterns := matching(all, path)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"} {
			if slices.Contains(known, method) {
				continue
			}
			res, body := b.call(method, path, "")
			require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode, "%s %s: %s", method, path, body)
			require.Equal(t, "application/json", res.Header.Get("Content-Type"), "%s %s", method, path)
			if patterns == 1 {
				require.ElementsMatch(t, known, strings.Split(res.Header.Get("Allow"), ", "), "%s %s", method, path)
			}
			if method != http.MethodHead {
				require.Equal(t, `{"error":"method not allowed"}`, body)
			}
		}
	}
}

func TestPathsThatGoOnBeyondEveryRouteAreUnknown(t *testing.T) {
	t.Parallel()
	b, all := setup(t), routes(t)
	for _, r := range all {
		path := somewhere(r.Path) + "/no/such/route"
		if known, _ := matching(all, path); known != nil {
			continue // below it there is one that takes all that is left
		}
		for _, method := range []string{r.Method, "BREW"} {
			b.want(method, path, "", http.StatusNotFound, noRoute)
		}
	}
}

func TestHeadIsAnsweredWhereReadingIsHarmless(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pop = func(context.Context, pop.Request) ([]byte, error) {
		t.Error("HEAD claimed messages")
		return nil, nil
	}
	for _, path := range []string{"/health", "/status", "/metrics", "/metrics/prometheus", "/api/v1/dlq", "/api/v1/resources/queues"} {
		res, body := b.call("HEAD", path, "")
		require.Equal(t, http.StatusOK, res.StatusCode, path)
		require.Empty(t, body)
	}
	for _, path := range []string{"/api/v1/pop?namespace=n", "/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/p"} {
		res, _ := b.call("HEAD", path, "")
		require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode, path)
		require.Equal(t, "GET", res.Header.Get("Allow"))
	}
}

func TestNamesInPathsAreDecodedOnceAfterRouting(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := make(chan pop.Request, 1)
	b.pop = func(_ context.Context, req pop.Request) ([]byte, error) {
		got <- req
		return nil, nil
	}
	for path, want := range map[string]pop.Request{
		"queue/q":                             {Route: pop.Wildcard, Queue: "q"},
		"queue/a%2Fb":                         {Route: pop.Wildcard, Queue: "a/b"},
		"queue/a%20b.c":                       {Route: pop.Wildcard, Queue: "a b.c"},
		"queue/q%3Fx%23y":                     {Route: pop.Wildcard, Queue: "q?x#y"},
		"queue/q/partition/x%20y%2Fz":         {Route: pop.Specific, Queue: "q", Partition: "x y/z"},
		"queue/q/partition/x/y":               {Route: pop.Specific, Queue: "q", Partition: "x/y"},
		"queue/q/partition/x%2Fy/z%2fw":       {Route: pop.Specific, Queue: "q", Partition: "x/y/z/w"},
		"queue/q/partition/x/":                {Route: pop.Specific, Queue: "q", Partition: "x/"},
		"queue/q/partition/100%25":            {Route: pop.Specific, Queue: "q", Partition: "100%"},
		"queue/q/partition/%2525":             {Route: pop.Specific, Queue: "q", Partition: "%25"},
		"queue/q/partition/a+b":               {Route: pop.Specific, Queue: "q", Partition: "a+b"},
		"queue/q/partition/gr%C3%BC%C3%9Fe":   {Route: pop.Specific, Queue: "q", Partition: "grüße"},
		"queue/q/partition/..%2F..":           {Route: pop.Specific, Queue: "q", Partition: "../.."},
		"queue/q/partition/":                  {Route: pop.Wildcard, Queue: "q"},
		"queue/partition/partition/partition": {Route: pop.Specific, Queue: "partition", Partition: "partition"},
		"queue/a%2Fpartition%2Fb":             {Route: pop.Wildcard, Queue: "a/partition/b"},
	} {
		res, _ := b.call("GET", "/api/v1/pop/"+path, "")
		require.Equal(t, http.StatusNoContent, res.StatusCode, path)
		req := <-got
		require.Equal(t, []any{want.Route, want.Queue, want.Partition}, []any{req.Route, req.Queue, req.Partition}, path)
	}
}

func TestBadNamesInPathsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	long := strings.Repeat("x", 1025)
	for _, path := range []string{
		"/api/v1/pop/queue/%00", "/api/v1/pop/queue/%FF", "/api/v1/pop/queue/a%0Ab", "/api/v1/pop/queue/" + long,
		"/api/v1/pop/queue/q/partition/%00", "/api/v1/pop/queue/q/partition/%C3%28", "/api/v1/pop/queue/q/partition/" + long,
		"/api/v1/resources/queues/%FF", "/api/v1/resources/queues/" + long,
	} {
		res, body := b.call("GET", path, "")
		require.Equal(t, http.StatusBadRequest, res.StatusCode, path)
		require.Regexp(t, `^\{"error":".+"\}$`, body)
	}
}

func TestMalformedEscapesAreBadRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, target := range []string{"/api/v1/pop/queue/%zz", "/api/v1/pop/queue/%", "/api/v1/pop/queue/q/partition/%4"} {
		conn, r := b.dial()
		_, err := io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		require.Contains(t, readHead(t, r), "HTTP/1.1 400 ", target)
	}
	b.want("GET", "/api/v1/pop/queue/q?consumerGroup=%zz", "", http.StatusBadRequest, `{"error":"bad query: URL escape \"%zz\""}`)
}

// Strict clients take a length or a type on a 204 for a body that never comes.
func TestNoContentIsBareAndKeepsTheConnection(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, r := b.dial()
	for range 3 {
		_, err := io.WriteString(conn, "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		require.Regexp(t, `^HTTP/1\.1 204 No Content\r\nDate: [^\r]+\r\n$`, readHead(t, r))
	}
	_, err := io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	head := readHead(t, r)
	require.Contains(t, head, "HTTP/1.1 200 OK\r\n")
	require.Contains(t, head, "Content-Type: application/json\r\n")
	require.Contains(t, head, "Content-Length: 40\r\n")
	body := make([]byte, 40)
	_, err = io.ReadFull(r, body)
	require.NoError(t, err)
	require.Equal(t, `{"status":"ok","engine":"segments-rust"}`, string(body))
}

func TestPanicCostsOneRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.pop = func(context.Context, pop.Request) ([]byte, error) { panic("a bug") }
	b.want("GET", "/api/v1/pop/queue/q", "", http.StatusInternalServerError, `{"error":"internal error"}`)
	require.Contains(t, b.log.String(), `msg="request handler panicked" method=GET route=/api/v1/pop/queue/:queue panic="a bug" stack="goroutine`)
	require.Contains(t, b.log.String(), "routing_test.go")
	b.want("GET", "/status", "", http.StatusOK, `{"status":"ok","engine":"segments-rust"}`)
}
