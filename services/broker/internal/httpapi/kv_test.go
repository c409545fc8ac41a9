package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/queenmq/queen/pkg/logtest"
	"github.com/queenmq/queen/pkg/pgdb"
	"github.com/queenmq/queen/pkg/pgtest"
	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/services/broker/internal/httpapi"
	"github.com/queenmq/queen/services/broker/internal/kv"
	"github.com/queenmq/queen/services/broker/internal/quota"
)

// keysBundle is the surface over keys in a database of its own.
type keysBundle struct {
	*bundle
	quotas *quota.Keeper
	flags  int // announced changes of switches
}

// failing is a store whose calls fail as they are told, and that counts them.
type failing struct {
	kv.Store
	err   error
	calls int
}

func (f *failing) KVApply(ctx context.Context, tenant uuid.UUID, ops json.RawMessage) (store.RawJSON, error) {
	f.calls++
	if f.err != nil {
		return nil, f.err
	}
	return f.Store.KVApply(ctx, tenant, ops)
}

func (f *failing) KVNamespaces(ctx context.Context, tenant uuid.UUID) (store.RawJSON, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.Store.KVNamespaces(ctx, tenant)
}

func setupKeys(t testing.TB, cfg quota.Config) (*keysBundle, *failing) {
	t.Helper()
	b := &keysBundle{}
	db := store.New(pgtest.New(t))
	var err error
	b.quotas, err = quota.New(cfg, quota.Deps{Store: db, Meter: noop.Meter{}, Logger: logtest.New(t)})
	require.NoError(t, err)
	require.NoError(t, b.quotas.Start(t.Context()))
	faults := &failing{Store: db}
	keys, err := kv.New(kv.Config{}, kv.Deps{Store: faults, Gate: b.quotas, Meter: noop.Meter{}})
	require.NoError(t, err)
	b.bundle = start(t, httpapi.Config{MaxBodyBytes: 1 << 20, MaxInflightBytes: 4 << 20}, func(d *httpapi.Deps) {
		d.Keys, d.Switches, d.FlagsChanged = keys, b.quotas, func() { b.flags++ }
	})
	return b, faults
}

// answer sends a request and returns the members of its answer.
func (b *keysBundle) answer(method, path, body string, status int) map[string]any {
	b.t.Helper()
	res, got := b.call(method, path, body)
	require.Equal(b.t, status, res.StatusCode, "%s %s: %s", method, path, got)
	require.Equal(b.t, "application/json", res.Header.Get("Content-Type"))
	var members map[string]any
	require.NoError(b.t, json.Unmarshal([]byte(got), &members), got)
	return members
}

// refused requires the envelope of a refusal.
func (b *keysBundle) refused(method, path, body string, status int, code, reason string) {
	b.t.Helper()
	got := b.answer(method, path, body, status)
	require.Equal(b.t, code, got["error"], "%s %s: %v", method, path, got)
	if reason == "" {
		require.NotContains(b.t, got, "reason")
		return
	}
	require.Equal(b.t, reason, got["reason"], "%s %s: %v", method, path, got)
}

const batch = "/api/v1/kv"

func TestBatchOfKeysIsAnsweredByPosition(t *testing.T) {
	t.Parallel()
	b, _ := setupKeys(t, quota.Config{})
	for _, form := range []string{`[%s]`, ` {"more":1,"operations":[%s]} `} {
		got := b.answer("POST", batch, fmt.Sprintf(form, `{"op":"get","ns":"n","key":"none"},
			{"op":"incr","ns":"n","key":"c","delta":2,"forever":true},
			{"op":"getMany","ns":"n","keys":["c","x"]}`), 200)
		require.Len(t, got, 1)
		results, ok := got["results"].([]any)
		require.True(t, ok)
		require.Len(t, results, 3)
		for i, op := range []string{"get", "incr", "getMany"} {
			element, _ := results[i].(map[string]any)
			require.EqualValues(t, i, element["index"])
			require.Equal(t, op, element["op"])
		}
	}
}

func TestEmptyBatchAsksNobody(t *testing.T) {
	t.Parallel()
	b, faults := setupKeys(t, quota.Config{})
	b.want("POST", batch, `[]`, 200, `{"results":[]}`)
	b.want("POST", batch, `{"operations":[]}`, 200, `{"results":[]}`)
	require.Zero(t, faults.calls)
}

func TestKeyByItsPath(t *testing.T) {
	t.Parallel()
	b, _ := setupKeys(t, quota.Config{})
	const path = "/api/v1/kv/n1/orders/2024%2Fa%20b"
	put := b.answer("PUT", path, `{"value":{"a":[1]},"ttlSeconds":60,"ignored":true}`, 200)
	require.Equal(t, "put", put["op"])
	require.Equal(t, "orders/2024/a b", put["key"])
	require.Equal(t, true, put["applied"])
	version := fmt.Sprintf(`"%.0f"`, put["version"])

	for _, same := range []string{path, "/api/v1/kv/n1/orders%2F2024%2Fa%20b", "/api/v1/kv/%6e1/orders/2024/a%20b"} {
		res, got := b.call("GET", same, "")
		require.Equal(t, 200, res.StatusCode, got)
		require.Contains(t, got, `"found": true`)
		require.Equal(t, version, res.Header.Get("ETag"))
	}
	head, body := b.call("HEAD", path, "")
	require.Equal(t, 200, head.StatusCode)
	require.Empty(t, body)
	require.Equal(t, version, head.Header.Get("ETag"))
	require.Contains(t, mustBody(b, "POST", batch, `[{"op":"get","ns":"n1","key":"orders/2024/a b"}]`), `"found": true`, "a batch names the same row")

	lost := b.answer("PUT", path, `{"value":1,"forever":true,"expect":0}`, 200)
	require.Equal(t, false, lost["applied"])
	require.Equal(t, "exists", lost["reason"])
	for _, nothing := range []string{`{"expect":0}`, "", "null", "{}"} {
		gone := b.answer("DELETE", path, nothing, 200)
		require.Equal(t, nothing == "", gone["applied"], nothing)
	}
	res, got := b.call("GET", path, "")
	require.Contains(t, got, `"found": false`)
	require.Empty(t, res.Header.Get("ETag"), "a miss has no version")
	twice := b.answer("GET", "/api/v1/kv/n1/a%252Fb", "", 200)
	require.Equal(t, "a%2Fb", twice["key"], "names are decoded once")
}

func mustBody(b *keysBundle, method, path, body string) string {
	b.t.Helper()
	res, got := b.call(method, path, body)
	require.Equal(b.t, 200, res.StatusCode, got)
	return got
}

func TestLostRequiredWriteIsAnAnswer(t *testing.T) {
	t.Parallel()
	b, _ := setupKeys(t, quota.Config{})
	first := b.answer("PUT", "/api/v1/kv/n/k", `{"value":"old","forever":true}`, 200)
	want := fmt.Sprintf(`{"ok":false,"reason":"kv_precondition","failedIndex":%%d,"kvReason":"exists","version":%.0f,"value":"old"}`, first["version"])
	b.want("PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true,"expect":0,"required":true}`, 200, fmt.Sprintf(want, 0))
	b.want("POST", batch, `[{"op":"put","ns":"n","key":"a","value":1,"forever":true},
		{"op":"putIfAbsent","ns":"n","key":"k","value":1,"forever":true,"required":true}]`, 200, fmt.Sprintf(want, 1))
	require.Contains(t, mustBody(b, "GET", "/api/v1/kv/n/a", ""), `"found": false`, "nothing of the call is left")

	b.answer("PUT", "/api/v1/kv/n/long", `{"value":"`+strings.Repeat("v", 5000)+`","forever":true}`, 200)
	b.want("DELETE", "/api/v1/kv/n/long", `{"expect":0,"required":true}`, 200, `{"ok":false,"reason":"kv_precondition"}`)
}

func TestRequestsOnKeysThatAreNotUnderstood(t *testing.T) {
	t.Parallel()
	b, _ := setupKeys(t, quota.Config{})
	const one, bad = "/api/v1/kv/n/k", "kv_bad_request"
	for _, tc := range []struct{ method, path, body, reason string }{
		{"POST", batch, ``, "kv_bad_body"},
		{"POST", batch, `{`, "kv_bad_body"},
		{"POST", batch, `{}`, "kv_bad_body"},
		{"POST", batch, `7`, "kv_bad_body"},
		{"POST", batch, `[] x`, "kv_bad_body"},
		{"POST", batch, `[7]`, "kv_bad_request"},
		{"POST", batch, `[{"op":"fly"}]`, "kv_unknown_op"},
		{"POST", batch, `[{"op":"get","ns":"N","key":"k"}]`, "kv_bad_namespace"},
		{"POST", batch, `[{"op":"get","ns":"n","key":""}]`, "kv_bad_key"},
		{"POST", batch, `[{"op":"get","ns":"n","key":"\u0000"}]`, "kv_bad_request"},
		{"POST", batch, `[{"op":"get","ns":"n","key":"k","tenantId":"x"}]`, "kv_tenant_not_an_input"},
		{"POST", batch, `[{"op":"put","ns":"n","key":"k","value":1}]`, "kv_expiry_not_specified"},
		{"POST", batch, `[{"op":"put","ns":"n","key":"k","value":"\ud800","forever":true}]`, "kv_bad_request"},
		{"GET", one + "?x=1", ``, "kv_no_query_string"},
		{"PUT", one + "?x=1", `{"value":1,"forever":true}`, "kv_no_query_string"},
		{"DELETE", one + "?x", ``, "kv_no_query_string"},
		{"GET", "/api/v1/resources/kv/namespaces?x=1", ``, "kv_no_query_string"},
		{"POST", "/api/v1/resources/kv/list?x=1", `{"namespace":"n"}`, "kv_no_query_string"},
		{"PUT", one, `{"value":1,"forever":true,"op":"put"}`, "kv_field_in_path"},
		{"PUT", one, `{"value":1,"forever":true,"ns":"n"}`, "kv_field_in_path"},
		{"PUT", one, `{"value":1,"forever":true,"namespace":"n"}`, "kv_field_in_path"},
		{"DELETE", one, `{"key":"k"}`, "kv_field_in_path"},
		{"PUT", one, ``, "kv_bad_body"},
		{"PUT", one, `[]`, "kv_bad_body"},
		{"PUT", one, `null`, "kv_bad_body"},
		{"PUT", one, `{"value":1,"value":2,"forever":true}`, "kv_bad_body"},
		{"PUT", one, `{"forever":true}`, "kv_bad_request"},
		{"DELETE", one, `7`, "kv_bad_body"},
		{"DELETE", one, `null null`, "kv_bad_body"},
		{"GET", "/api/v1/kv/N/k", ``, "kv_bad_namespace"},
		{"GET", "/api/v1/kv/n/", ``, "kv_bad_key"},
		{"GET", "/api/v1/kv/n/%ff", ``, "kv_bad_key"},
		{"GET", "/api/v1/kv/%ff/k", ``, "kv_bad_namespace"},
		{"GET", "/api/v1/kv/n/%00", ``, "kv_bad_request"},
		{"POST", "/api/v1/resources/kv/list", `{"namespace":"N"}`, "kv_bad_namespace"},
		{"POST", "/api/v1/resources/kv/list", `{}`, "kv_bad_namespace"},
		{"POST", "/api/v1/resources/kv/list", `{"namespace":7}`, "kv_bad_body"},
		{"POST", "/api/v1/resources/kv/list", `{"namespace":"n","limit":1.5}`, "kv_bad_body"},
		{"POST", "/api/v1/resources/kv/list", `{"namespace":"n","prefix":"\u0000"}`, "kv_bad_body"},
	} {
		b.refused(tc.method, tc.path, tc.body, http.StatusBadRequest, bad, tc.reason)
	}
	long := strings.Repeat("k", 513)
	b.refused("GET", "/api/v1/kv/n/"+long, "", 413, "payload_too_large", "kv_key_too_large")
	b.refused("PUT", one, `{"value":"`+strings.Repeat("v", 65535)+`","forever":true}`, 413, "payload_too_large", "kv_value_too_large")
	b.refused("POST", batch, strings.Repeat(" ", 1<<20)+"[]", 413, "payload_too_large", "kv_body_too_large")
	b.want("GET", "/api/v1/kv", "", http.StatusMethodNotAllowed, `{"error":"method not allowed"}`)
	b.want("GET", "/api/v1/kv/n", "", http.StatusNotFound, `{"error":"Not Found","code":"no_such_route"}`)
}

func TestConsoleReadsKeys(t *testing.T) {
	t.Parallel()
	b, _ := setupKeys(t, quota.Config{})
	b.want("GET", "/api/v1/resources/kv/namespaces", "", 200, `{"namespaces":[]}`)
	for i := range 3 {
		b.answer("PUT", fmt.Sprintf("/api/v1/kv/n1/k%d", i), fmt.Sprintf(`{"value":%d,"forever":true}`, i), 200)
	}
	got := b.answer("GET", "/api/v1/resources/kv/namespaces", "", 200)
	require.Equal(t, []any{map[string]any{"namespace": "n1", "keys": 3.0}}, got["namespaces"])
	page := b.answer("POST", "/api/v1/resources/kv/list", `{"namespace":"n1","prefix":"k","after":"k0","limit":1,"keysOnly":true,"includeExpired":null}`, 200)
	require.Equal(t, true, page["truncated"])
	require.Equal(t, "k1", page["nextAfter"])
	require.Len(t, page["rows"], 1)
	for _, limit := range []string{"-5", "0"} {
		page = b.answer("POST", "/api/v1/resources/kv/list", `{"namespace":"n1","limit":`+limit+`}`, 200)
		require.Len(t, page["rows"], 1, "a limit that is too small is 1")
	}
	page = b.answer("POST", "/api/v1/resources/kv/list", `{"namespace":"n1","limit":1e99}`, 200)
	require.Len(t, page["rows"], 3)
	page = b.answer("POST", "/api/v1/resources/kv/list", `{"namespace":"unknown"}`, 200)
	require.Empty(t, page["rows"])
}

func TestSwitchesStopKeysAndBringThemBack(t *testing.T) {
	t.Parallel()
	b, faults := setupKeys(t, quota.Config{})
	const path = "/api/v1/system/kv-timers"
	got := b.answer("GET", path, "", 200)
	for _, name := range []string{"kvEnabled", "timersScheduleEnabled", "timersFireEnabled"} {
		require.Equal(t, true, got[name], name)
	}
	for _, name := range []string{"quotaTenants", "quotaAgeMs", "quotaHot"} {
		require.IsType(t, 0.0, got[name], name)
	}
	got = b.answer("POST", path, `{"kv":false}`, 200)
	require.Equal(t, true, got["mirrored"])
	require.Equal(t, false, got["kvEnabled"])
	require.Equal(t, true, got["timersFireEnabled"])
	require.Equal(t, 1, b.flags, "others are told")
	got = b.answer("GET", path, "", 200)
	require.Equal(t, false, got["kvEnabled"], "it is on record")
	require.NotContains(t, got, "mirrored")
	for _, route := range [][3]string{
		{"POST", batch, `[]`}, {"POST", batch, `[{"op":"get","ns":"n","key":"k"}]`}, {"GET", "/api/v1/kv/n/k", ""}, {"PUT", "/api/v1/kv/n/k", `{"value":1}`},
		{"DELETE", "/api/v1/kv/n/k", ""}, {"GET", "/api/v1/resources/kv/namespaces", ""}, {"POST", "/api/v1/resources/kv/list", `{"namespace":"n"}`},
	} {
		b.refused(route[0], route[1], route[2], 503, "kv_disabled", "")
		res, _ := b.call(route[0], route[1], route[2])
		require.Equal(t, "5", res.Header.Get("Retry-After"))
	}
	require.Zero(t, faults.calls)
	require.NotContains(t, b.log.String(), "request failed", "an operator's will is no failure")
	b.refused("POST", batch, `7`, 400, "kv_bad_request", "kv_bad_body")
	got = b.answer("POST", path, `{"kv":true,"timersFire":false,"x":1}`, 200)
	require.Equal(t, true, got["kvEnabled"])
	require.Equal(t, false, got["timersFireEnabled"])
	require.Contains(t, mustBody(b, "GET", "/api/v1/kv/n/k", ""), `"found": false`)
	for _, bad := range []string{``, `{}`, `[]`, `{"kv":1}`, `{"kv":null}`, `{"other":true}`, `{"kv":true,"kv":false}`} {
		b.answer("POST", path, bad, 400)
	}
	require.Equal(t, 2, b.flags)
}

func TestRefusedTenantsGetTheirStatus(t *testing.T) {
	t.Parallel()
	b, _ := setupKeys(t, quota.Config{RequireGrant: true})
	b.refused("GET", "/api/v1/kv/n/k", "", 403, "feature_gated", "")
	limited, faults := setupKeys(t, quota.Config{WriteRate: 1, WriteBurst: 1})
	put := `[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]`
	limited.answer("POST", batch, put, 200)
	limited.refused("POST", batch, put, 429, "rate_limited", "")
	res, _ := limited.call("POST", batch, put)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Equal(t, 1, faults.calls, "a refused call takes no connection")
	limited.answer("GET", "/api/v1/kv/n/k", "", 200)
}

func TestWhatTheDatabaseDoesHasItsStatus(t *testing.T) {
	t.Parallel()
	b, faults := setupKeys(t, quota.Config{})
	raised := func(code, message string) error {
		return fmt.Errorf("key/value operations: %w", &pgconn.PgError{Severity: "ERROR", Code: code, Message: message})
	}
	for _, tc := range []struct {
		err          error
		status       int
		code, reason string
	}{
		{fmt.Errorf("apply: %w: %w", pgdb.ErrExhausted, context.DeadlineExceeded), 503, "kv_unavailable", "kv_pool_exhausted"},
		{fmt.Errorf("apply: %w: refused", pgdb.ErrPool), 503, "kv_unavailable", "connection"},
		{fmt.Errorf("apply: %w", context.DeadlineExceeded), 503, "kv_unavailable", "kv_timeout"},
		{fmt.Errorf("apply: %w", io.ErrUnexpectedEOF), 503, "kv_unavailable", "connection"},
		{raised("57014", "canceling statement due to statement timeout"), 503, "kv_unavailable", "kv_timeout"},
		{raised("40001", "could not serialize access"), 503, "kv_unavailable", "could not serialize access"},
		{raised("40P01", "deadlock detected"), 503, "kv_unavailable", "deadlock detected"},
		{raised("08006", "connection failure"), 503, "kv_unavailable", "connection failure"},
		{raised("53300", "too many connections"), 503, "kv_unavailable", "too many connections"},
		{raised("57P01", "terminating connection"), 503, "kv_unavailable", "terminating connection"},
		{raised("58030", "io error"), 503, "kv_unavailable", "io error"},
		{raised("42883", "no such function"), 500, "kv_misconfigured", ""},
		{raised("XX000", "something else"), 500, "kv_error", ""},
		{raised("23505", "a constraint"), 500, "kv_error", ""},
	} {
		faults.err = tc.err
		for _, route := range [][3]string{
			{"POST", batch, `[{"op":"get","ns":"n","key":"k"}]`}, {"GET", "/api/v1/kv/n/k", ""}, {"GET", "/api/v1/resources/kv/namespaces", ""},
		} {
			b.refused(route[0], route[1], route[2], tc.status, tc.code, tc.reason)
			res, _ := b.call(route[0], route[1], route[2])
			require.Equal(t, tc.status == 503, res.Header.Get("Retry-After") == "1", tc.err)
		}
	}
	require.Contains(t, b.log.String(), "something else", "what an operator must know is logged")
}

func TestAnswersThatCannotBeReadAreFailures(t *testing.T) {
	t.Parallel()
	for answer, reason := range map[string]string{"": "kv_result_missing", "null": "kv_result_missing", `{"a":1}`: "kv_result_unreadable"} {
		keys, err := kv.New(kv.Config{}, kv.Deps{Store: fixed(answer), Gate: openGate{}, Meter: noop.Meter{}})
		require.NoError(t, err)
		b := &keysBundle{bundle: setupWith(t, func(d *httpapi.Deps) { d.Keys = keys })}
		b.refused("GET", "/api/v1/kv/n/k", "", 500, "kv_error", reason)
	}
}

// fixed is a store that always answers the same.
type fixed string

func (f fixed) KVApply(context.Context, uuid.UUID, json.RawMessage) (store.RawJSON, error) {
	return store.RawJSON(f), nil
}
func (f fixed) KVTogether(context.Context, uuid.UUID, json.RawMessage) (store.RawJSON, error) {
	return store.RawJSON(f), nil
}
func (f fixed) KVList(context.Context, uuid.UUID, store.KVPage) (store.RawJSON, error) {
	return store.RawJSON(f), nil
}
func (f fixed) KVNamespaces(context.Context, uuid.UUID) (store.RawJSON, error) {
	return store.RawJSON(f), nil
}

// openGate lets everybody pass.
type openGate struct{}

func (openGate) KV(uuid.UUID, quota.KVDemand) (*quota.Charge, error) { return nil, nil } //nolint:nilnil // nothing is charged
func (openGate) KVPoolRefused(bool, bool)                            {}
