package httpapi_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/quota"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

// timersFake notes the calls and answers with them.
type timersFake struct{ refusal error }

func (f *timersFake) answer(format string, args ...any) (store.RawJSON, error) {
	if f.refusal != nil {
		return nil, f.refusal
	}
	return json.Marshal(fmt.Sprintf(format, args...))
}

func (f *timersFake) Apply(_ context.Context, _ uuid.UUID, sub string, ops json.RawMessage) (store.RawJSON, error) {
	if f.refusal != nil {
		return nil, f.refusal
	}
	return slices.Clone(ops), nil
}

func (f *timersFake) Cancel(_ context.Context, _ uuid.UUID, queue, key, txn string) (store.RawJSON, error) {
	return f.answer("cancel %s|%s|%s", queue, key, txn)
}

func (f *timersFake) Peek(_ context.Context, _ uuid.UUID, queue, key string) (store.RawJSON, error) {
	return f.answer("peek %s|%s", queue, key)
}

func (f *timersFake) List(_ context.Context, _ uuid.UUID, queue, after string, limit int) (store.RawJSON, error) {
	return f.answer("list %s|%s|%d", queue, after, limit)
}

func (f *timersFake) Count(_ context.Context, _ uuid.UUID, queue, prefix string) (int64, error) {
	return int64(len(queue + prefix)), f.refusal
}

func setupTimers(t *testing.T) (*bundle, *timersFake) {
	t.Helper()
	fake := &timersFake{}
	return setupWith(t, func(d *httpapi.Deps) { d.Timers = fake }), fake
}

func TestTimerOperationsComeInBothForms(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	for _, body := range []string{`[{"op":"cancel"}]`, `{"operations":[{"op":"cancel"}],"other":1}`} {
		b.want("POST", "/api/v1/timers", body, http.StatusOK, `{"results":[{"op":"cancel"}]}`)
	}
	b.want("POST", "/api/v1/timers", `[]`, http.StatusOK, `{"results":[]}`)
}

func TestTimersInPathsAreDecodedOnce(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	for path, want := range map[string]string{
		"q/k":                            "q|k",
		"q/k/1":                          "q|k/1",
		"q/k%2F1":                        "q|k/1",
		"q/k%252F1":                      "q|k%2F1",
		"q//k/":                          "q|/k/",
		"a%2Fb/c":                        "a/b|c",
		"q/count":                        "q|count",
		"q/a%20b+c%3Fd":                  "q|a b+c?d",
		"q/%C3%BC/..%2F%0A":              "q|ü/../\n",
		"q/" + strings.Repeat("x", 1024): "q|" + strings.Repeat("x", 1024),
	} {
		quoted, err := json.Marshal("peek " + want)
		require.NoError(t, err)
		b.want("GET", "/api/v1/timers/"+path, "", http.StatusOK, string(quoted))
		quoted, err = json.Marshal("cancel " + want + "|t/1")
		require.NoError(t, err)
		b.want("DELETE", "/api/v1/timers/"+path+"?txn=t%2F1&other=x", `{"not":"read"`, http.StatusOK, string(quoted))
	}
	b.want("DELETE", "/api/v1/timers/q/k", "", http.StatusOK, `"cancel q|k|"`)
}

func TestBadTimerPathsAreRefused(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	for path, reason := range map[string]string{
		"/q/": "timers_bad_name", "/q/%00": "timers_bad_name", "/q/%FF": "timers_bad_name", "/q/" + strings.Repeat("x", 1025): "timers_bad_name",
		"/%FF/k": "timers_bad_name", "/a%0Ab/k": "timers_bad_name", "/" + strings.Repeat("q", 256) + "/k": "timers_bad_name",
		"//k": "timers_queue_required", "/q/k?txn=%": "timers_bad_query", "/q/k?txn=%00": "timers_bad_name",
		"/q/k?txn=" + strings.Repeat("t", 1025): "timers_bad_name",
	} {
		b.refused("DELETE", "/api/v1/timers"+path, "", http.StatusBadRequest, "timers_bad_request", reason)
		if !strings.Contains(path, "?") {
			b.refused("GET", "/api/v1/timers"+path, "", http.StatusBadRequest, "timers_bad_request", reason)
		}
	}
}

// refused expects the envelope of the family.
func (b *bundle) refused(method, path, body string, status int, code, reason string) http.Header {
	b.t.Helper()
	res, got := b.call(method, path, body)
	require.Equal(b.t, status, res.StatusCode, "%s %s: %s", method, path, got)
	require.Equal(b.t, "application/json", res.Header.Get("Content-Type"))
	var envelope map[string]string
	require.NoError(b.t, json.Unmarshal([]byte(got), &envelope), got)
	require.Equal(b.t, []string{code, reason}, []string{envelope["error"], envelope["reason"]}, got)
	return res.Header
}

func TestTimersAreListedByPages(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	for query, want := range map[string]string{
		"": "|100", "?mode=list": "|100", "?mode=&limit=": "|100", "?limit=1": "|1", "?limit=0": "|1", "?limit=-7": "|1",
		"?limit=1000": "|1000", "?limit=1001": "|1000", "?limit=ten": "|100", "?limit=1e2": "|100",
		"?after=a%2Fb+c&limit=7&prefix=x": "a/b c|7",
	} {
		b.want("GET", "/api/v1/timers/q%2F1"+query, "", http.StatusOK, `"list q/1|`+want+`"`)
	}
	for query, reason := range map[string]string{
		"?mode=counts": "timers_read_mode_unknown", "?mode=COUNT": "timers_read_mode_unknown",
		"?after=%00": "timers_bad_query", "?after=%FF": "timers_bad_query", "?after=%": "timers_bad_query", "?a;b": "timers_bad_query",
	} {
		b.refused("GET", "/api/v1/timers/q"+query, "", http.StatusBadRequest, "timers_bad_request", reason)
	}
	b.refused("GET", "/api/v1/timers/%FF", "", http.StatusBadRequest, "timers_bad_request", "timers_bad_name")
}

func TestTimersAreCountedByPrefix(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	b.want("GET", "/api/v1/timers/q?mode=count&prefix=ab", "", http.StatusOK, `{"count":3}`)
	b.want("GET", "/api/v1/timers/q?mode=count&prefix="+strings.Repeat("p", 128), "", http.StatusOK, `{"count":129}`)
	for query, reason := range map[string]string{
		"":                                    "timers_count_prefix_required",
		"&prefix=":                            "timers_count_prefix_required",
		"&prefix=" + strings.Repeat("p", 129): "timers_count_prefix_too_long",
		"&prefix=" + strings.Repeat("%C3%BC", 65): "timers_count_prefix_too_long",
		"&prefix=a%00":       "timers_count_prefix_invalid",
		"&prefix=%FF":        "timers_count_prefix_invalid",
		"&prefix=a&after=":   "timers_count_not_paged",
		"&prefix=a&limit=10": "timers_count_not_paged",
	} {
		b.refused("GET", "/api/v1/timers/q?mode=count"+query, "", http.StatusBadRequest, "timers_bad_request", reason)
	}
}

func TestHeadOfTimersIsHarmless(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	for _, path := range []string{"/api/v1/timers/q", "/api/v1/timers/q/k"} {
		res, body := b.call("HEAD", path, "")
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Empty(t, body)
	}
	for path, allow := range map[string]string{"/api/v1/timers": "POST", "/api/v1/timers/q": "GET, HEAD", "/api/v1/timers/q/k": "DELETE, GET, HEAD"} {
		res, _ := b.call("PUT", path, "")
		require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode)
		require.ElementsMatch(t, strings.Split(allow, ", "), strings.Split(res.Header.Get("Allow"), ", "), path)
	}
}

func TestBadTimerBodiesHaveTheEnvelopeOfTheFamily(t *testing.T) {
	t.Parallel()
	b, _ := setupTimers(t)
	for _, body := range []string{"", "{", "7", "null", `{"operations":7}`, `{}`, "[]x", "\xff"} {
		b.refused("POST", "/api/v1/timers", body, http.StatusBadRequest, "timers_bad_request", "timers_bad_body")
	}
	b.refused("POST", "/api/v1/timers", strings.Repeat(" ", 1<<20+1), http.StatusRequestEntityTooLarge, "payload_too_large", "timers_body_too_large")
}

func TestRefusedTimersCarryTheirHeaders(t *testing.T) {
	t.Parallel()
	b, fake := setupTimers(t)
	fake.refusal = &wire.Refusal{
		Status: http.StatusServiceUnavailable, Code: "timers_disabled", Reason: "paused", RetryAfter: 1500 * time.Millisecond, Hint: "DELETE",
	}
	header := b.refused("POST", "/api/v1/timers", "[{}]", http.StatusServiceUnavailable, "timers_disabled", "paused")
	require.Equal(t, []string{"2", "DELETE"}, []string{header.Get("Retry-After"), header.Get("x-queen-timers-hint")})
	for _, call := range [][2]string{{"GET", "/q"}, {"GET", "/q/k"}, {"DELETE", "/q/k"}, {"GET", "/q?mode=count&prefix=p"}} {
		b.refused(call[0], "/api/v1/timers"+call[1], "", http.StatusServiceUnavailable, "timers_disabled", "paused")
	}
}

// deaf hears of timers and does nothing.
type deaf struct{}

func (deaf) TimerDue(time.Time, time.Duration) {}

// newTimers is the real thing over a database.
func newTimers(t testing.TB, db *store.Store) *timers.Service {
	t.Helper()
	keeper, err := quota.New(quota.Config{}, quota.Deps{Store: db, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	s, err := timers.New(timers.Deps{
		Store: db, Edge: timers.NewEdge(timers.Config{}, keeper, mint.NewSource()), Quota: keeper, Announcer: deaf{}, Meter: noop.Meter{},
	})
	require.NoError(t, err)
	return s
}

func TestTimersOverHTTP(t *testing.T) {
	t.Parallel()
	service := newTimers(t, store.New(pgtest.New(t)))
	b := setupWith(t, func(d *httpapi.Deps) { d.Timers = service })
	payload := base64.StdEncoding.EncodeToString([]byte(`{"a":1}`))
	res, body := b.call("POST", "/api/v1/timers", `{"operations":[`+
		`{"op":"schedule","queue":"q","timerKey":"k/1","delayMs":60000,"txn":"t","payload":"`+payload+`"},`+
		`{"op":"cancel","queue":"q","timerKey":"none"}]}`)
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	require.Regexp(t, `^\{"results":\[\{.*"status": ?"scheduled".*\}, ?\{.*"status": ?"absent".*\}\]\}$`, body)
	for _, path := range []string{"/api/v1/timers/q/k/1", "/api/v1/timers/q/k%2F1"} {
		res, body = b.call("GET", path, "")
		require.Equal(t, http.StatusOK, res.StatusCode)
		require.Contains(t, body, payload)
		require.Contains(t, body, `"found": true`)
	}
	res, body = b.call("GET", "/api/v1/timers/q", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Contains(t, body, `"timerKey": "k/1"`)
	require.NotContains(t, body, payload)
	b.want("GET", "/api/v1/timers/q?mode=count&prefix=k/", "", http.StatusOK, `{"count":1}`)
	res, body = b.call("DELETE", "/api/v1/timers/q/k%2F1", "")
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.JSONEq(t, `{"ok":true,"status":"cancelled","queue":"q","timerKey":"k/1","txn":"t"}`, body)
	b.want("GET", "/api/v1/timers/q?mode=count&prefix=k/", "", http.StatusOK, `{"count":0}`)
}

func TestTimersThatCouldNotBeDeliveredAreListed(t *testing.T) {
	t.Parallel()
	db := store.New(pgtest.New(t))
	service := newTimers(t, db)
	b := setupWith(t, func(d *httpapi.Deps) { d.Timers, d.DeadLetters = service, db })
	var letters []store.TimerLetter
	for key, payload := range map[string]string{"json": `{"x":1}`, "text": `not JSON`, "nul": `"\u0000"`} {
		res, body := b.call("POST", "/api/v1/timers", `[{"op":"schedule","queue":"q.task","timerKey":"`+key+`","delayMs":0,"txn":"txn-`+key+`",`+
			`"partition":"lane","payload":"`+base64.StdEncoding.EncodeToString([]byte(payload))+`"}]`)
		require.Equal(t, http.StatusOK, res.StatusCode, body)
		letters = append(letters, store.TimerLetter{
			TimerKey: store.TimerKey{Tenant: store.DefaultTenant(), Queue: "q.task", Key: key}, Payload: []byte(payload), Error: "broken",
		})
	}
	archived, _, err := db.TimersDeadLetter(t.Context(), letters, 0)
	require.NoError(t, err)
	require.Equal(t, 3, archived)

	res, body := b.call("GET", "/api/v1/dlq?consumerGroup=__timer__&queue=q.task&partition=lane", "")
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	var page struct {
		Messages []struct {
			Txn   string          `json:"transactionId"`
			Group string          `json:"consumerGroup"`
			Queue string          `json:"queue"`
			Error string          `json:"errorMessage"`
			Data  json.RawMessage `json:"data"`
		} `json:"messages"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &page))
	data := make(map[string]string)
	for _, m := range page.Messages {
		require.Equal(t, []string{"__timer__", "q.task", "broken"}, []string{m.Group, m.Queue, m.Error})
		data[m.Txn] = strings.ReplaceAll(string(m.Data), " ", "")
	}
	raw := func(payload string) string {
		return `{"$raw":"` + base64.StdEncoding.EncodeToString([]byte(payload)) + `"}`
	}
	require.Equal(t, map[string]string{"txn-json": `{"x":1}`, "txn-text": raw("not JSON"), "txn-nul": raw(`"\u0000"`)}, data)
	b.want("GET", "/api/v1/timers/q.task?mode=count&prefix=j", "", http.StatusOK, `{"count":0}`)
}

// FuzzTimersBody finds no body that is answered with anything but what is listed.
func FuzzTimersBody(f *testing.F) {
	listed := map[int][]string{
		http.StatusBadRequest:            {"timers_bad_request"},
		http.StatusForbidden:             {"timer_horizon_exceeded"},
		http.StatusRequestEntityTooLarge: {"payload_too_large"},
	}
	for _, op := range []string{
		`{"op":"schedule","queue":"q","timerKey":"k","delayMs":1,"txn":"t","payload":"e30="}`,
		`{"op":"reschedule","queue":"q","timerKey":"k","delayMs":-1e9,"txn":"t","payload":"","partition":"p","payloadZstd":true,"encrypted":null}`,
		`{"op":"cancel","queue":"q","timerKey":"k","txn":7}`, `{"op":"schedule","_messageId":"x"}`, `{"delayMs":1e400,"op":"schedule"}`,
		`{"op":"schedule","queue":"\u0000","timerKey":"\ud800","delayMs":1e18,"txn":"t","payload":"\/\/=="}`, `{"op":"cancel","queue":[],"timerKey":{}}`,
		`7`, `null`, `{"op":"schedule","op":"cancel"}`, `{"op":"cancel","deliverAt":0}`, `{"op":"cancel","queue":"q","timerKey":"k","x":1e999999}`,
	} {
		f.Add([]byte(`[` + op + `]`))
		f.Add([]byte(`{"operations":[` + op + `,{"op":"cancel","queue":"q","timerKey":"z"}]}`))
	}
	service := newTimers(f, store.New(pgtest.New(f)))
	api, err := httpapi.New(httpapi.Config{MaxBodyBytes: 1 << 20, MaxInflightBytes: 4 << 20},
		httpapi.Deps{Timers: service, Log: slog.New(slog.DiscardHandler), Meter: noop.Meter{}})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body []byte) {
		res := httptest.NewRecorder()
		api.ServeHTTP(res, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/timers", strings.NewReader(string(body))))
		var answer struct {
			Error   string            `json:"error"`
			Results []json.RawMessage `json:"results"`
		}
		require.NoError(t, json.Unmarshal(res.Body.Bytes(), &answer), "%s", res.Body)
		if res.Code == http.StatusOK {
			require.NotNil(t, answer.Results)
			return
		}
		require.Contains(t, listed[res.Code], answer.Error, "%d %s", res.Code, res.Body)
	})
}
