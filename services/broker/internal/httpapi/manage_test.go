package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/store"
)

func TestProcedureAnswersPassUnchanged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for answer, status := range map[string]int{
		`{"configured":true}`:                           http.StatusOK,
		`{ "error" : null, "x": 1 }`:                    http.StatusOK,
		`{"error":"Queue not found"}`:                   http.StatusNotFound,
		`{"error":"NOT FOUND here","a":[1]}`:            http.StatusNotFound,
		`{"error":"something else"}`:                    http.StatusInternalServerError,
		`{"error":{"text":"not found"}}`:                http.StatusNotFound,
		`{"error":"out of range","invalid":"ttl"}`:      http.StatusBadRequest,
		`{"nested":{"error":"not found"}}`:              http.StatusOK,
		`[1,2]`:                                         http.StatusOK,
		`not json`:                                      http.StatusOK,
		`{"deleted":false,"message":"Queue not found"}`: http.StatusOK,
	} {
		b.configure = func(string, json.RawMessage, bool) (store.RawJSON, error) { return store.RawJSON(answer), nil }
		b.queues = func(string, string) (store.RawJSON, error) { return store.RawJSON(answer), nil }
		b.want("POST", "/api/v1/configure", `{"queue":"q"}`, status, answer)
		b.want("GET", "/api/v1/resources/queues", "", status, answer)
		b.want("GET", "/api/v1/resources/queues/q", "", status, answer)
		b.want("DELETE", "/api/v1/resources/queues/q", "", status, answer)
	}
}

func TestQueueRoutesDecodeTheName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("GET", "/api/v1/resources/queues/a%2Fb%20c", "", http.StatusOK, `{"queue":"a/b c","verb":"get"}`)
	b.want("DELETE", "/api/v1/resources/queues/a%2Fb", "{}", http.StatusOK, `{"queue":"a/b","verb":"delete"}`)
	b.want("GET", "/api/v1/resources/queues?stats=cached&limit=x", "", http.StatusOK, `{"queue":"","verb":"list cached"}`)
	b.want("GET", "/api/v1/resources/queues?stats=live", "", http.StatusOK, `{"queue":"","verb":"list"}`)
}

func TestChangedQueuesAreAnnounced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.call("POST", "/api/v1/configure", `{"queue":"one"}`)
	b.call("DELETE", "/api/v1/resources/queues/two", "")
	b.configure = func(string, json.RawMessage, bool) (store.RawJSON, error) {
		return store.RawJSON(`{"error":"refused"}`), nil
	}
	b.call("POST", "/api/v1/configure", `{"queue":"three"}`)
	require.Equal(t, []string{"one", "two deleted"}, b.changed)
}

func TestFailedCallsSayWhichOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for fault, text := range map[error]string{
		errors.New("boom"):                      "%s failed: boom",
		fmt.Errorf("acquire: %w", pgdb.ErrPool): "pool",
	} {
		answer := func(verb string) string {
			if text == "pool" {
				return `{"error":"pool"}`
			}
			return fmt.Sprintf(`{"error":"`+text+`"}`, verb)
		}
		b.configure = func(string, json.RawMessage, bool) (store.RawJSON, error) { return nil, fault }
		b.queues = func(string, string) (store.RawJSON, error) { return nil, fault }
		b.dlq = func(store.DLQFilter) (store.RawJSON, error) { return nil, fault }
		b.want("POST", "/api/v1/configure", `{"queue":"q"}`, 500, answer("configure"))
		b.want("GET", "/api/v1/resources/queues", "", 500, answer("queue list"))
		b.want("GET", "/api/v1/resources/queues/q", "", 500, answer("queue lookup"))
		b.want("DELETE", "/api/v1/resources/queues/q", "", 500, answer("queue delete"))
		b.want("GET", "/api/v1/dlq", "", 500, answer("dlq lookup"))
	}
}

func TestDLQFilters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seen := make(chan store.DLQFilter, 1)
	b.dlq = func(f store.DLQFilter) (store.RawJSON, error) {
		seen <- f
		return store.RawJSON(`{}`), nil
	}
	at := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	for query, want := range map[string]store.DLQFilter{
		"":                                     {Limit: 100},
		"?queue=q&consumerGroup=g&partition=p": {Queue: "q", ConsumerGroup: "g", Partition: "p", Limit: 100},
		"?limit=5&offset=10":                   {Limit: 5, Offset: 10},
		"?limit=&offset=&from=&to=":            {Limit: 100},
		"?limit=0":                             {Limit: 0},
		"?limit=1000000":                       {Limit: 1000},
		"?from=2026-03-01T08:00:00Z":           {Limit: 100, From: at},
		"?from=2026-03-01T09:00:00%2B01:00":    {Limit: 100, From: at},
		"?from=2026-03-01T09:00:00+01:00":      {Limit: 100, From: at},
		"?to=2026-03-01T08:00":                 {Limit: 100, To: at},
		"?to=2026-03-01T08:00:00.000":          {Limit: 100, To: at},
		"?to=2026-03-01&unknown=1":             {Limit: 100, To: at.Add(-8 * time.Hour)},
	} {
		res, body := b.call("GET", "/api/v1/dlq"+query, "")
		require.Equal(t, http.StatusOK, res.StatusCode, "%s: %s", query, body)
		want.Tenant = store.DefaultTenant()
		require.Equal(t, want, <-seen, query)
	}
}

func TestHealthAsksTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want("GET", "/health", "", http.StatusOK,
		`{"status":"healthy","database":"connected","engine":"segments-rust","version":"1.2.3"}`)
	b.ping = func(ctx context.Context) error {
		_, bounded := ctx.Deadline()
		require.True(t, bounded)
		return errors.New("gone")
	}
	b.want("GET", "/health", "", http.StatusServiceUnavailable,
		`{"status":"unhealthy","database":"disconnected","engine":"segments-rust","version":"1.2.3"}`)
	b.want("GET", "/status", "", http.StatusOK, `{"status":"ok","engine":"segments-rust"}`)
}

func TestCountersCountRequestsAndMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.call("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},{"queue":"q","payload":2}]}`)
	res, body := b.call("GET", "/metrics", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Regexp(t, `^\{"uptime":0,"requests":\{"total":2,"rate":0\},"messages":\{"total":2,"rate":0\},`+
		`"database":\{"poolSize":7,"idleConnections":3,"waitingRequests":0\},`+
		`"memory":\{"rss":[1-9]\d{5,},"heapTotal":0,"heapUsed":0,"external":0,"arrayBuffers":0\},"cpu":\{"user":0,"system":0\}\}$`, body)
}

func TestRequestMetricsHaveBoundedLabels(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.call("GET", "/api/v1/pop/queue/one", "")
	b.call("GET", "/api/v1/pop/queue/two", "")
	b.call("PUT", "/api/v1/push", "")
	b.call("BREW", "/made/up", "")
	b.call("POST", "/api/v1/push", "{")
	res, body := b.call("GET", "/metrics/prometheus", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/plain; version=0.0.4; charset=utf-8", res.Header.Get("Content-Type"))
	var counts []string
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "http_server_request_duration_seconds_count") {
			counts = append(counts, strings.TrimSpace(strings.TrimPrefix(line, "http_server_request_duration_seconds_count")))
		}
	}
	require.ElementsMatch(t, []string{
		`{http_request_method="GET",http_route="/api/v1/pop/queue/:queue",status_class="2xx"} 2`,
		`{http_request_method="PUT",http_route="/api/v1/push",status_class="4xx"} 1`,
		`{http_request_method="other",http_route="unmatched",status_class="4xx"} 1`,
		`{http_request_method="POST",http_route="/api/v1/push",status_class="4xx"} 1`,
	}, counts)
	require.Contains(t, body, "\nhttp_server_active_requests 1\n")
	require.Contains(t, body, "\nqueen_http_inflight_body_bytes 0\n")
}
