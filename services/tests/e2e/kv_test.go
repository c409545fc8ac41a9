package e2e_test

import (
	"bytes"
	cryptorand "crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const kvPath = "/api/v1/kv"

// object is a JSON object.
type object = map[string]any

// namespace is unique.
func namespace() string { return "ns-" + strings.ToLower(cryptorand.Text()) }

// surface is one way in which clients send operations on keys.
type surface struct {
	name   string
	header []string
	// path has one get, put or delete go to a route of its own, which is how the Go
	// client does it; escape is what becomes of the key in it.
	path   bool
	escape func(string) string
	// bare leaves the envelope of a batch out.
	bare bool
}

func rawSlashes(key string) string {
	return strings.ReplaceAll(url.PathEscape(key), "%2F", "/")
}

func surfaces() []surface {
	return []surface{
		{name: "JavaScript", header: asJS()},
		{name: "Go", header: asGo(), path: true, escape: rawSlashes},
		{name: "escaped path", header: asGo(), path: true, escape: url.PathEscape},
		{name: "bare array", header: asJS(), bare: true},
	}
}

// eachSurface runs a test of the common broker once for every way in.
func eachSurface(t *testing.T, test func(t *testing.T, k *keyspace)) {
	t.Helper()
	t.Parallel()
	for _, s := range surfaces() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(t, &keyspace{Broker: harness.Shared(t), surface: s, ns: namespace()})
		})
	}
}

// keyspace is a namespace of the common broker and one way to it.
type keyspace struct {
	*harness.Broker
	surface
	ns string
}

// send carries out operations in one batch and answers the response as it is.
func (k *keyspace) send(t *testing.T, ops ...object) harness.Answer {
	t.Helper()
	for _, op := range ops {
		op["ns"] = k.ns
	}
	body := mustJSON(t, object{"operations": ops})
	if k.bare {
		body = mustJSON(t, ops)
	}
	return send(t, k.Broker, k.header, http.MethodPost, kvPath, body)
}

// batch requires a result for every operation, in order.
func (k *keyspace) batch(t *testing.T, ops ...object) []object {
	t.Helper()
	a := k.send(t, ops...)
	require.Equal(t, http.StatusOK, a.Status, a)
	var answer struct {
		Results []object `json:"results"`
	}
	a.Into(t, &answer)
	require.Len(t, answer.Results, len(ops), a)
	for i, r := range answer.Results {
		require.InDelta(t, i, r["index"], 0, a)
		require.Equal(t, ops[i]["op"], r["op"], a)
	}
	return answer.Results
}

// do carries out one operation the way the client does, and answers its result.
func (k *keyspace) do(t *testing.T, op object) object {
	t.Helper()
	method := map[any]string{"get": http.MethodGet, "put": http.MethodPut, "delete": http.MethodDelete}[op["op"]]
	if !k.path || method == "" {
		return k.batch(t, op)[0]
	}
	key, body := op["key"].(string), ""
	rest := maps.Clone(op)
	for _, name := range []string{"op", "ns", "key"} {
		delete(rest, name)
	}
	if len(rest) > 0 {
		body = mustJSON(t, rest)
	}
	a := send(t, k.Broker, k.header, method, kvPath+"/"+k.ns+"/"+k.escape(key), body)
	require.Equal(t, http.StatusOK, a.Status, a)
	r := a.Object(t)
	require.Equal(t, op["op"], r["op"], a)
	if found, _ := r["found"].(bool); found {
		require.Equal(t, fmt.Sprintf(`"%.0f"`, r["version"]), a.Header.Get("ETag"), a)
	} else {
		require.Empty(t, a.Header.Get("ETag"), a)
	}
	return r
}

func put(key string, value any, more ...any) object {
	op := object{"op": "put", "key": key, "value": value, "forever": true}
	return plus(op, more...)
}

// plus adds members, names and values in turn.
func plus(op object, more ...any) object {
	for i := 0; i+1 < len(more); i += 2 {
		op[more[i].(string)] = more[i+1]
	}
	if _, timed := op["ttlSeconds"]; timed {
		delete(op, "forever")
	}
	return op
}

func putIfAbsent(key string, value any, more ...any) object {
	op := put(key, value, more...)
	op["op"] = "putIfAbsent"
	return op
}

func fetch(key string) object { return object{"op": "get", "key": key} }

func del(key string, more ...any) object { return plus(object{"op": "delete", "key": key}, more...) }

func incr(key string, delta any, more ...any) object {
	return plus(object{"op": "incr", "key": key, "delta": delta, "forever": true}, more...)
}

// requireApplied requires a write that took place and answers the version.
func requireApplied(t *testing.T, r object, key string, value any) float64 {
	t.Helper()
	require.Equal(t, object{"applied": true, "key": key, "value": value}, part(r, "applied", "key", "value"), r)
	require.NotContains(t, r, "reason")
	version, _ := r["version"].(float64)
	require.Positive(t, version, r)
	return version
}

// requireLost requires a write that was refused, and what it was told.
func requireLost(t *testing.T, r object, reason, key string, value, version any) {
	t.Helper()
	require.Equal(t, object{"applied": false, "reason": reason, "key": key, "value": value, "version": version},
		part(r, "applied", "reason", "key", "value", "version"), r)
}

// part is some members of an object; a missing one is missing.
func part(o object, names ...string) object {
	out := object{}
	for _, name := range names {
		if v, ok := o[name]; ok {
			out[name] = v
		}
	}
	return out
}

func requireInstant(t *testing.T, v any) time.Time {
	t.Helper()
	text, _ := v.(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err, "%v", v)
	return at
}

func TestKVClientPutGetDelete(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		version := requireApplied(t, k.do(t, put("user-1", object{"a": 1.0}, "ttlSeconds", 60)), "user-1", object{"a": 1.0})
		r := k.do(t, fetch("user-1"))
		require.Equal(t, object{"found": true, "key": "user-1", "value": object{"a": 1.0}, "version": version},
			part(r, "found", "key", "value", "version"))
		left := time.Until(requireInstant(t, r["expiresAt"]))
		require.InDelta(t, 60, left.Seconds(), 30)
		requireInstant(t, r["updatedAt"])

		require.Equal(t, version, requireApplied(t, k.do(t, del("user-1")), "user-1", object{"a": 1.0}), "what was removed")
		require.Equal(t, object{"found": false, "key": "user-1"}, part(k.do(t, fetch("user-1")), "found", "key", "value", "version", "expiresAt"))
		requireLost(t, k.do(t, del("user-1")), "absent", "user-1", nil, 0.0)

		requireApplied(t, k.do(t, put("user-1", 1.0)), "user-1", 1.0)
		require.Nil(t, k.do(t, fetch("user-1"))["expiresAt"], "for ever")
	})
}

func TestKVClientKeysWithSlashes(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		all := []string{"a/b", "a/b/", "/a", "a//b", "a/../b", "a b?c#d", "p%2Fq", "ключ/é", "@p/orders/lane-1/group/name", "<&>\"\\", "a+b", "..."}
		for _, key := range all {
			version := requireApplied(t, k.do(t, put(key, key)), key, key)
			for _, s := range surfaces() {
				other := &keyspace{Broker: k.Broker, surface: s, ns: k.ns}
				r := other.do(t, fetch(key))
				require.Equal(t, object{"found": true, "key": key, "value": key, "version": version},
					part(r, "found", "key", "value", "version"), "%q written by %s and read by %s", key, k.name, s.name)
			}
		}
		require.EqualValues(t, len(all), harness.Value[int64](t, k.DB, `SELECT count(*) FROM queen.kv WHERE namespace = $1`, k.ns))
	})
}

func TestKVClientValuesOfEveryKind(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		for i, value := range []any{nil, true, false, 0.0, -1.5, 9007199254740991.0, "", "é\u2028\"", []any{}, object{}, []any{nil, object{"a": []any{1.0}}}} {
			key := fmt.Sprint("k", i)
			requireApplied(t, k.do(t, put(key, value)), key, value)
			require.Equal(t, object{"found": true, "value": value}, part(k.do(t, fetch(key)), "found", "value"))
		}
	})
}

func TestKVClientVersionsAreNeverShared(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		seen := map[float64]bool{}
		for i := range 4 {
			seen[requireApplied(t, k.do(t, put("same", 1.0)), "same", 1.0)] = true
			seen[requireApplied(t, k.do(t, put(fmt.Sprint("k", i), 1.0)), fmt.Sprint("k", i), 1.0)] = true
		}
		require.Len(t, seen, 8)
		for v := range seen {
			require.Less(t, v, float64(1<<53), "JavaScript reads it exactly")
		}
	})
}

func TestKVClientPutIfAbsent(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		version := requireApplied(t, k.do(t, putIfAbsent("once", "first")), "once", "first")
		requireLost(t, k.do(t, putIfAbsent("once", "second")), "exists", "once", "first", version)
		requireLost(t, k.do(t, put("once", "third", "expect", 0)), "exists", "once", "first", version)
		require.Equal(t, "first", k.do(t, fetch("once"))["value"])
	})
}

func TestKVClientExpect(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		requireLost(t, k.do(t, put("doc", 1.0, "expect", 7)), "absent", "doc", nil, 0.0)
		require.Equal(t, false, k.do(t, fetch("doc"))["found"], "nothing is created")
		requireLost(t, k.do(t, del("doc", "expect", 7)), "absent", "doc", nil, 0.0)
		requireLost(t, k.do(t, put("doc", 1.0, "expect", 7)), "absent", "doc", nil, 0.0)
		requireAppliedAbsent(t, k.do(t, del("doc", "expect", 0)))

		first := requireApplied(t, k.do(t, put("doc", 1.0, "expect", 0)), "doc", 1.0)
		second := requireApplied(t, k.do(t, put("doc", 2.0, "expect", first)), "doc", 2.0)
		requireLost(t, k.do(t, put("doc", 3.0, "expect", first)), "version", "doc", 2.0, second)
		requireLost(t, k.do(t, del("doc", "expect", first)), "version", "doc", 2.0, second)
		requireLost(t, k.do(t, del("doc", "expect", 0)), "exists", "doc", 2.0, second)
		requireApplied(t, k.do(t, del("doc", "expect", second)), "doc", 2.0)
	})
}

// requireAppliedAbsent requires the outcome of a delete that expected nothing and
// found nothing.
func requireAppliedAbsent(t *testing.T, r object) {
	t.Helper()
	require.Equal(t, object{"applied": true, "value": nil, "version": 0.0}, part(r, "applied", "value", "version"), r)
}

func TestKVClientCounters(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		for want := 1; want <= 3; want++ {
			requireApplied(t, k.do(t, incr("c", 1, "max", 3)), "c", float64(want))
		}
		version := k.do(t, fetch("c"))["version"]
		for range 2 {
			requireLost(t, k.do(t, incr("c", 1, "max", 3)), "limit", "c", 3.0, version)
		}
		require.Equal(t, version, k.do(t, fetch("c"))["version"], "a refused call leaves a live counter alone")
		requireApplied(t, k.do(t, incr("c", -5, "min", -2)), "c", -2.0)
		requireLost(t, k.do(t, incr("first", 4, "max", 3)), "limit", "first", 0.0, 0.0)
		require.Equal(t, false, k.do(t, fetch("first"))["found"], "nothing is created")

		requireApplied(t, k.do(t, put("text", "x")), "text", "x")
		require.Equal(t, object{"applied": false, "reason": "type", "value": 0.0}, part(k.do(t, incr("text", 1)), "applied", "reason", "value"))

		a := k.send(t, incr("big", json.Number("9007199254740993")), incr("half", 0.5))
		require.Regexp(t, `"value": ?9007199254740993[,}]`, string(a.Body), "neither exponent nor fraction")
		require.Regexp(t, `"value": ?0\.5[,}]`, string(a.Body))
	})
}

func TestKVClientTimeToLive(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		for _, key := range []string{"lock", "counter", "gone"} {
			requireApplied(t, k.do(t, put(key, "text", "ttlSeconds", 1)), key, "text")
		}
		require.Equal(t, true, k.do(t, fetch("lock"))["found"])
		harness.Eventually(t, 5*time.Second, "the keys expire", func() bool { return k.do(t, fetch("gone"))["found"] == false })
		requireApplied(t, k.do(t, putIfAbsent("lock", "next")), "lock", "next")
		requireApplied(t, k.do(t, incr("counter", 2, "max", 2)), "counter", 2.0)
		requireLost(t, k.do(t, del("gone")), "absent", "gone", nil, 0.0)
	})
}

func TestKVClientGetMany(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		k.batch(t, put("b", 2.0), put("a", 1.0, "ttlSeconds", 60))
		r := k.batch(t, object{"op": "getMany", "keys": []string{"x", "b", "a", "w"}}, object{"op": "getMany", "keys": []string{}})
		require.Equal(t, object{"missing": []any{"x", "w"}, "truncated": false}, part(r[0], "missing", "truncated"))
		rows := rowsOf(t, r[0])
		require.Equal(t, []any{"a", "b"}, column(rows, "key"))
		require.Equal(t, []any{1.0, 2.0}, column(rows, "value"))
		requireInstant(t, rows[0]["expiresAt"])
		require.Nil(t, rows[1]["expiresAt"])
		requireInstant(t, rows[1]["updatedAt"])
		require.Equal(t, object{"rows": []any{}, "missing": []any{}, "truncated": false}, part(r[1], "rows", "missing", "truncated"))
	})
}

func rowsOf(t *testing.T, r object) []object {
	t.Helper()
	list, ok := r["rows"].([]any)
	require.True(t, ok, r)
	rows := make([]object, len(list))
	for i, row := range list {
		rows[i] = row.(object)
	}
	return rows
}

func column(rows []object, name string) []any {
	out := make([]any, len(rows))
	for i, row := range rows {
		out[i] = row[name]
	}
	return out
}

func TestKVClientPrefixPages(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		var ops []object
		for _, key := range []string{"s/1", "s/2", "s/3", "t/1", "t/2", "t/3", "t/4", "t/5", "tt", "t", "s%", "s_/1", "sx/1"} {
			ops = append(ops, put(key, key))
		}
		k.batch(t, ops...)
		for prefix, want := range map[string][]any{
			"s/": {"s/1", "s/2", "s/3"}, "t/": {"t/1", "t/2", "t/3", "t/4", "t/5"}, "s_": {"s_/1"}, "s%": {"s%"},
			"t": {"t", "t/1", "t/2", "t/3", "t/4", "t/5", "tt"}, "u": {},
		} {
			got, after := []any{}, ""
			for {
				page := k.batch(t, object{"op": "getPrefix", "prefix": prefix, "limit": 2, "after": after})[0]
				rows := rowsOf(t, page)
				require.LessOrEqual(t, len(rows), 2)
				require.Equal(t, column(rows, "key"), column(rows, "value"))
				got = append(got, column(rows, "key")...)
				if page["truncated"] == false {
					require.Nil(t, page["nextAfter"])
					break
				}
				require.Equal(t, rows[1]["key"], page["nextAfter"])
				after = page["nextAfter"].(string)
			}
			require.Equal(t, want, got, prefix)
		}
		names := rowsOf(t, k.batch(t, object{"op": "getPrefix", "prefix": "s/", "keysOnly": true})[0])
		require.Equal(t, []any{"s/1", "s/2", "s/3"}, column(names, "key"))
		require.NotContains(t, names[0], "value")
	})
}

func TestKVClientBatchIsOneTransactionInOrder(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		r := k.batch(t, fetch("z"), put("z", 1.0), fetch("z"), put("a", 2.0), object{"op": "getMany", "keys": []string{"a", "z"}}, fetch("nope"))
		require.Equal(t, []any{false, nil, true}, []any{r[0]["found"], r[1]["found"], r[2]["found"]})
		require.Equal(t, 1.0, r[2]["value"])
		require.Equal(t, r[1]["version"], r[2]["version"])
		require.Len(t, rowsOf(t, r[4]), 2)
		require.Equal(t, false, r[5]["found"])

		a := k.send(t, put("left", 1.0), put("right", 1.0, "forever", false))
		requireRefusal(t, a, http.StatusBadRequest, "kv_bad_request", "kv_expiry_not_specified")
		require.Equal(t, false, k.do(t, fetch("left"))["found"], "all of it or nothing")
	})
}

func TestKVClientLostRequired(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		version := requireApplied(t, k.do(t, putIfAbsent("leader", "me")), "leader", "me")
		a := k.send(t, putIfAbsent("leader", "you", "required", true), put("beside", 1.0))
		require.Equal(t, http.StatusOK, a.Status, a)
		want := object{"ok": false, "reason": "kv_precondition", "failedIndex": 0.0, "kvReason": "exists", "version": version, "value": "me"}
		require.Equal(t, want, part(a.Object(t), "ok", "reason", "failedIndex", "kvReason", "version", "value", "results"), a)
		require.Equal(t, false, k.do(t, fetch("beside"))["found"])

		a = k.send(t, put("beside", 1.0), fetch("leader"), put("leader", 1.0, "expect", 999999999, "required", true))
		want["failedIndex"], want["kvReason"] = 2.0, "version"
		require.Equal(t, want, part(a.Object(t), "ok", "reason", "failedIndex", "kvReason", "version", "value", "results"), a)
		require.Equal(t, false, k.do(t, fetch("beside"))["found"])
		requireApplied(t, k.do(t, put("leader", "new", "expect", version, "required", true)), "leader", "new")

		if k.path {
			for method, body := range map[string]string{
				http.MethodPut: `{"value":1,"forever":true,"expect":0,"required":true}`, http.MethodDelete: `{"expect":0,"required":true}`,
			} {
				a := send(t, k.Broker, k.header, method, kvPath+"/"+k.ns+"/leader", body)
				require.Equal(t, http.StatusOK, a.Status, a)
				require.Equal(t, object{"ok": false, "reason": "kv_precondition", "failedIndex": 0.0, "kvReason": "exists", "value": "new"},
					part(a.Object(t), "ok", "reason", "failedIndex", "kvReason", "value"), a)
			}
		}
	})
}

func TestKVClientUnknownMembersAreIgnored(t *testing.T) {
	eachSurface(t, func(t *testing.T, k *keyspace) {
		requireApplied(t, k.do(t, put("k", 1.0, "shard", 3, "createdAt", "now")), "k", 1.0)
		require.Equal(t, true, k.batch(t, plus(fetch("k"), "consistency", "strong"))[0]["found"])
	})
}

func TestKVClientPathBodies(t *testing.T) {
	t.Parallel()
	b, ns := harness.Shared(t), namespace()
	call := func(method, key, body string) harness.Answer {
		return send(t, b, asGo(), method, kvPath+"/"+ns+"/"+key, body)
	}
	require.Equal(t, true, call("PUT", "k", `{"value":null,"forever":true}`).Object(t)["applied"])
	require.Equal(t, "k", call("GET", "k", "").Object(t)["key"])
	for _, body := range []string{"", "null", "{}", ` {"expect":null} `} {
		a := call("DELETE", "never", body)
		if strings.Contains(body, "expect") {
			requireRefusal(t, a, http.StatusBadRequest, "kv_bad_request", "kv_bad_expect")
			continue
		}
		require.Equal(t, "absent", a.Object(t)["reason"], "%s: %s", body, a)
	}
	for _, body := range []string{
		`{"value":1,"forever":true,"op":"put"}`, `{"value":1,"forever":true,"ns":"x"}`, `{"value":1,"forever":true,"namespace":null}`, `{"key":"k"}`,
	} {
		requireRefusal(t, call("PUT", "k", body), http.StatusBadRequest, "kv_bad_request", "kv_field_in_path")
		requireRefusal(t, call("DELETE", "k", body), http.StatusBadRequest, "kv_bad_request", "kv_field_in_path")
	}
	for _, body := range []string{`[]`, `{`, `1`, `"x"`, `{} {}`} {
		requireRefusal(t, call("PUT", "k", body), http.StatusBadRequest, "kv_bad_request", "kv_bad_body")
		requireRefusal(t, call("DELETE", "k", body), http.StatusBadRequest, "kv_bad_request", "kv_bad_body")
	}
	requireRefusal(t, call("PUT", "k", `{"forever":true}`), http.StatusBadRequest, "kv_bad_request", "kv_bad_request")
	for method, body := range map[string]string{"GET": "", "PUT": `{"value":2,"forever":true}`, "DELETE": ""} {
		requireRefusal(t, call(method, "k?consistency=strong", body), http.StatusBadRequest, "kv_bad_request", "kv_no_query_string")
	}
	a, err := b.Call(t.Context(), "PUT", kvPath+"/"+ns+"/k", []byte(`{"value":2,"forever":true}`), "Content-Type", "application/json", "If-Match", `"0"`)
	require.NoError(t, err)
	require.Equal(t, true, a.Object(t)["applied"], "If-Match is not read: %s", a)
}

// requireRefusal requires the envelope of the families of keys and timers.
func requireRefusal(t *testing.T, a harness.Answer, status int, code, reason string) {
	t.Helper()
	require.Equal(t, status, a.Status, a)
	require.True(t, strings.HasPrefix(a.Header.Get("Content-Type"), "application/json"), a)
	o := a.Object(t)
	require.Equal(t, code, o["error"], a)
	require.Equal(t, reason, o["reason"], a)
	detail, given := o["detail"]
	require.True(t, !given || detail != "", a)
	delete(o, "detail")
	requireKeys(t, o, "error", "reason")
}

func TestKVRefusals(t *testing.T) {
	t.Parallel()
	b, ns := harness.Shared(t), namespace()
	op := func(members string) string { return `{"operations":[{` + strings.ReplaceAll(members, "NS", ns) + `}]}` }
	repeated := func(n int, one string) string {
		return `[` + strings.TrimSuffix(strings.Repeat(strings.ReplaceAll(one, "NS", ns)+",", n), ",") + `]`
	}
	keyList := func(n int) string { return `[` + strings.TrimSuffix(strings.Repeat(`"k",`, n), ",") + `]` }
	for _, c := range []struct {
		body, reason string
		status       int
	}{
		{``, "kv_bad_body", 400},
		{`{`, "kv_bad_body", 400},
		{`{"operations":{}}`, "", 400},
		{`7`, "", 400},
		{`[1]`, "kv_bad_request", 400},
		{op(`"op":"shout","ns":"NS","key":"k"`), "kv_unknown_op", 400},
		{op(`"ns":"NS","key":"k"`), "kv_unknown_op", 400},
		{op(`"op":"get","ns":"NS","key":"k","tenant":"x"`), "kv_tenant_not_an_input", 400},
		{op(`"op":"get","ns":"NS","key":"k","_tenant":null`), "kv_tenant_not_an_input", 400},
		{op(`"op":"getPrefix","ns":"NS"`), "kv_prefix_required", 400},
		{op(`"op":"getPrefix","ns":"NS","prefix":""`), "kv_prefix_required", 400},
		{op(`"op":"getMany","ns":"NS","keys":"k"`), "kv_bad_request", 400},
		{op(`"op":"get","ns":"Upper","key":"k"`), "kv_bad_namespace", 400},
		{op(`"op":"get","ns":"` + strings.Repeat("n", 65) + `","key":"k"`), "kv_bad_namespace", 400},
		{op(`"op":"get","key":"k"`), "kv_bad_namespace", 400},
		{op(`"op":"get","ns":"NS","key":""`), "kv_bad_key", 400},
		{op(`"op":"get","ns":"NS"`), "kv_bad_key", 400},
		{op(`"op":"get","ns":"NS","key":"` + strings.Repeat("é", 256) + `x"`), "kv_key_too_large", 413},
		{op(`"op":"put","ns":"NS","key":"k","value":1,"ttlSeconds":0`), "kv_bad_ttl", 400},
		{op(`"op":"put","ns":"NS","key":"k","value":1,"ttlSeconds":1.5`), "kv_bad_ttl", 400},
		{op(`"op":"put","ns":"NS","key":"k","value":1,"ttlSeconds":"1"`), "kv_bad_ttl", 400},
		{op(`"op":"put","ns":"NS","key":"k","value":1`), "kv_expiry_not_specified", 400},
		{op(`"op":"put","ns":"NS","key":"k","value":1,"forever":true,"ttlSeconds":1`), "kv_expiry_not_specified", 400},
		{op(`"op":"put","ns":"NS","key":"k","forever":true`), "kv_bad_request", 400},
		{op(`"op":"put","ns":"NS","key":"k","forever":true,"value":"` + repeat(65535) + `"`), "kv_value_too_large", 413},
		{op(`"op":"put","ns":"NS","key":"k","forever":true,"value":1,"expect":-1`), "kv_bad_expect", 400},
		{op(`"op":"put","ns":"NS","key":"k","forever":true,"value":1,"expect":null`), "kv_bad_expect", 400},
		{op(`"op":"putIfAbsent","ns":"NS","key":"k","forever":true,"value":1,"expect":1`), "kv_bad_expect", 400},
		{op(`"op":"incr","ns":"NS","key":"k","forever":true,"delta":"1"`), "kv_bad_request", 400},
		{op(`"op":"incr","ns":"NS","key":"k","forever":true,"delta":1,"expect":0`), "kv_bad_request", 400},
		{op(`"op":"delete","ns":"NS","key":"k","required":1`), "kv_bad_request", 400},
		{repeated(2, `{"op":"delete","ns":"NS","key":"k"}`), "kv_duplicate_key_in_call", 400},
		{repeated(257, `{"op":"get","ns":"NS","key":"k"}`), "kv_too_many_ops", 400},
		{op(`"op":"getMany","ns":"NS","keys":` + keyList(1025)), "kv_too_many_keys", 400},
	} {
		a := b.Post(t, kvPath, c.body)
		code := "kv_bad_request"
		if c.status == http.StatusRequestEntityTooLarge {
			code = "payload_too_large"
		}
		if c.reason == "" {
			require.Equal(t, []any{c.status, code}, []any{a.Status, a.Object(t)["error"]}, "%.200s: %s", c.body, a)
			continue
		}
		require.Equal(t, c.status, a.Status, "%.200s: %s", c.body, a)
		requireRefusal(t, a, c.status, code, c.reason)
	}
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.kv WHERE namespace = $1`, ns))

	k := &keyspace{Broker: b, surface: surfaces()[0], ns: ns}
	require.Len(t, k.batch(t, slices.Repeat([]object{fetch("k")}, 256)...), 256)
	requireApplied(t, k.do(t, put(strings.Repeat("k", 512), repeat(65534))), strings.Repeat("k", 512), repeat(65534))
	k.batch(t, object{"op": "getMany", "keys": slices.Repeat([]string{"k"}, 1024)})
	require.JSONEq(t, `{"results":[]}`, string(b.Post(t, kvPath, `{"operations":[]}`).Body))
	require.JSONEq(t, `{"results":[]}`, string(b.Post(t, kvPath, `[]`).Body))
}

func TestKVReadBudget(t *testing.T) {
	t.Parallel()
	k := &keyspace{Broker: harness.Shared(t), surface: surfaces()[0], ns: namespace()}
	for from := 0; from < 80; from += 20 {
		var ops []object
		for i := from; i < from+20; i++ {
			ops = append(ops, put(fmt.Sprintf("k%03d", i), repeat(65000)))
		}
		k.batch(t, ops...)
	}
	// 4 MiB are 65 values; the one that crosses the line is still there.
	page := k.batch(t, object{"op": "getPrefix", "prefix": "k"})[0]
	require.Len(t, rowsOf(t, page), 65)
	require.Equal(t, object{"truncated": true, "nextAfter": "k064"}, part(page, "truncated", "nextAfter"))
	page = k.batch(t, object{"op": "getPrefix", "prefix": "k", "after": "k064"})[0]
	require.Len(t, rowsOf(t, page), 15)
	require.Equal(t, false, page["truncated"])
}

func TestKVConsole(t *testing.T) {
	t.Parallel()
	b := harness.Shared(t)
	k := &keyspace{Broker: b, surface: surfaces()[0], ns: namespace()}
	k.batch(t, put("a/1", 1.0), put("a/2", object{"x": nil}, "ttlSeconds", 60), put("b", 3.0))
	list := func(body string) object {
		a := b.Post(t, "/api/v1/resources/kv/list", strings.ReplaceAll(body, "NS", k.ns))
		require.Equal(t, http.StatusOK, a.Status, a)
		return a.Object(t)
	}
	page := list(`{"namespace":"NS"}`)
	rows := rowsOf(t, page)
	require.Equal(t, []any{"a/1", "a/2", "b"}, column(rows, "key"))
	require.Equal(t, []any{1.0, object{"x": nil}, 3.0}, column(rows, "value"))
	require.Equal(t, []any{false, false, false}, column(rows, "expired"))
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, rows[1]["expiresAt"])
	require.Nil(t, rows[0]["expiresAt"])
	require.Equal(t, object{"truncated": false, "nextAfter": nil}, part(page, "truncated", "nextAfter"))
	require.Positive(t, page["bytes"])

	page = list(`{"namespace":"NS","prefix":"a/","limit":1,"keysOnly":true}`)
	require.Equal(t, object{"truncated": true, "nextAfter": "a/1", "bytes": 0.0}, part(page, "truncated", "nextAfter", "bytes"))
	require.NotContains(t, rowsOf(t, page)[0], "value")
	require.Equal(t, []any{"a/2"}, column(rowsOf(t, list(`{"namespace":"NS","prefix":"a/","after":"a/1"}`)), "key"))

	b.DB.Exec(t, `UPDATE queen.kv SET expires_at = now() - interval '1 second' WHERE namespace = $1 AND key = 'a/2'`, k.ns)
	require.Equal(t, []any{"a/1", "b"}, column(rowsOf(t, list(`{"namespace":"NS"}`)), "key"))
	if all := rowsOf(t, list(`{"namespace":"NS","includeExpired":true}`)); len(all) == 3 { // a sweeper may have been sooner
		require.Equal(t, []any{false, true, false}, column(all, "expired"))
	}
	require.Empty(t, rowsOf(t, list(`{"namespace":"nobody-has-this"}`)))
	a := b.Post(t, "/api/v1/resources/kv/list", `{"namespace":"Not Good"}`)
	requireRefusal(t, a, http.StatusBadRequest, "kv_bad_request", "kv_bad_namespace")
	requireRefusal(t, b.Post(t, "/api/v1/resources/kv/list?limit=1", `{"namespace":"x"}`), http.StatusBadRequest, "kv_bad_request", "kv_no_query_string")
	requireRefusal(t, b.Get(t, "/api/v1/resources/kv/namespaces?limit=1"), http.StatusBadRequest, "kv_bad_request", "kv_no_query_string")

	var answer struct {
		Namespaces []object `json:"namespaces"`
	}
	b.Get(t, "/api/v1/resources/kv/namespaces").Into(t, &answer)
	names := column(answer.Namespaces, "namespace")
	i := slices.Index(names, any(k.ns))
	require.GreaterOrEqual(t, i, 0)
	requireKeys(t, answer.Namespaces[i], "namespace", "keys")
	require.GreaterOrEqual(t, answer.Namespaces[i]["keys"], 2.0)
	require.True(t, slices.IsSortedFunc(names, func(a, b any) int { return strings.Compare(a.(string), b.(string)) }))
}

// One of many that create a key at once has it, on any broker.
func TestKVClientOneWinner(t *testing.T) {
	t.Parallel()
	k := &keyspace{Broker: harness.Shared(t), surface: surfaces()[0], ns: namespace()}
	const racers = 12
	answers := make(chan harness.Answer, racers)
	for i := range racers {
		go func() {
			body := fmt.Sprintf(`{"operations":[{"op":"putIfAbsent","ns":%q,"key":"k","value":%d,"forever":true}]}`, k.ns, i)
			a, err := k.Call(t.Context(), http.MethodPost, kvPath, []byte(body))
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	won := 0
	var values []any
	for range racers {
		a := <-answers
		require.Equal(t, http.StatusOK, a.Status, a)
		r := a.Object(t)["results"].([]any)[0].(object)
		if values = append(values, r["value"], r["version"]); r["applied"] == true {
			won++
		}
	}
	require.Equal(t, 1, won)
	require.Equal(t, slices.Repeat(values[:2], racers), values, "everybody knows the winner")
	require.False(t, bytes.Contains(k.Get(t, kvPath+"/"+k.ns+"/k").Body, []byte(`"found":false`)))
}
