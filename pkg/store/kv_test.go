package store_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// Every write on a key that is absent, expired and live: what is answered, and what
// is there afterwards. A live row is {"a": 1}, or 5 where the operation counts.
func TestKVWrites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const gone = `null`
	live := int64(0) // version of the live row
	cases := []struct {
		op      string // %d is the version of the live row
		state   string
		reason  string // of a refusal, "" for an applied one
		value   string // in the answer
		version bool   // in the answer: that of the live row
		after   string // the value that a reader finds
	}{
		{`"op":"put","value":2,"forever":true`, "absent", "", `2`, false, `2`},
		{`"op":"put","value":2,"forever":true`, "expired", "", `2`, false, `2`},
		{`"op":"put","value":2,"forever":true`, "live", "", `2`, false, `2`},
		{`"op":"put","value":null,"ttlSeconds":9`, "live", "", `null`, false, `null`},
		{`"op":"put","value":2,"forever":true,"expect":0`, "absent", "", `2`, false, `2`},
		{`"op":"put","value":2,"forever":true,"expect":0`, "expired", "", `2`, false, `2`},
		{`"op":"put","value":2,"forever":true,"expect":0`, "live", "exists", `{"a":1}`, true, `{"a":1}`},
		{`"op":"putIfAbsent","value":2,"forever":true`, "absent", "", `2`, false, `2`},
		{`"op":"putIfAbsent","value":2,"forever":true`, "expired", "", `2`, false, `2`},
		{`"op":"putIfAbsent","value":2,"forever":true,"expect":0`, "live", "exists", `{"a":1}`, true, `{"a":1}`},
		{`"op":"put","value":2,"forever":true,"expect":7`, "absent", "absent", `null`, false, gone},
		{`"op":"put","value":2,"forever":true,"expect":%d`, "expired", "absent", `null`, false, gone},
		{`"op":"put","value":2,"forever":true,"expect":%d`, "live", "", `2`, false, `2`},
		{`"op":"put","value":2,"forever":true,"expect":9223372036854775808`, "live", "version", `{"a":1}`, true, `{"a":1}`},
		{`"op":"delete"`, "absent", "absent", `null`, false, gone},
		{`"op":"delete"`, "expired", "absent", `null`, false, gone},
		{`"op":"delete"`, "live", "", `{"a":1}`, true, gone},
		{`"op":"delete","expect":0`, "absent", "", `null`, false, gone},
		{`"op":"delete","expect":0`, "expired", "", `null`, false, gone},
		{`"op":"delete","expect":0`, "live", "exists", `{"a":1}`, true, `{"a":1}`},
		{`"op":"delete","expect":7`, "absent", "absent", `null`, false, gone},
		{`"op":"delete","expect":%d`, "expired", "absent", `null`, false, gone},
		{`"op":"delete","expect":%d`, "live", "", `{"a":1}`, true, gone},
		{`"op":"delete","expect":9e17`, "live", "version", `{"a":1}`, true, `{"a":1}`},
		{`"op":"incr","delta":3,"forever":true`, "absent", "", `3`, false, `3`},
		{`"op":"incr","delta":3,"forever":true`, "expired", "", `3`, false, `3`},
		{`"op":"incr","delta":3,"forever":true`, "live", "type", `0`, true, `{"a":1}`},
		{`"op":"incr","delta":3,"forever":true`, "number", "", `8`, false, `8`},
		{`"op":"incr","delta":-7.50,"forever":true`, "number", "", `-2.5`, false, `-2.5`},
		{`"op":"incr","delta":3,"max":3,"forever":true`, "absent", "", `3`, false, `3`},
		{`"op":"incr","delta":4,"max":3,"forever":true`, "absent", "limit", `0`, false, gone},
		{`"op":"incr","delta":-1,"min":0,"forever":true`, "expired", "limit", `0`, false, gone},
		{`"op":"incr","delta":3,"max":8,"forever":true`, "number", "", `8`, false, `8`},
		{`"op":"incr","delta":3,"max":7.9,"forever":true`, "number", "limit", `5`, true, `5.00`},
		{`"op":"incr","delta":-5,"min":0,"forever":true`, "number", "", `0`, false, `0`},
		{`"op":"incr","delta":-5.1,"min":0,"forever":true`, "number", "limit", `5`, true, `5.00`},
		{`"op":"incr","delta":-5,"min":1,"max":2,"forever":true`, "live", "type", `0`, true, `{"a":1}`},
		{`"op":"incr","delta":123456789012345678901234567890.5,"forever":true`, "number", "", `123456789012345678901234567895.5`, false, `123456789012345678901234567895.5`},
	}
	for _, c := range cases {
		name := c.state + ": " + c.op
		b.exec(`DELETE FROM queen.kv`)
		switch c.state {
		case "expired":
			b.expired("k", `"dead"`)
			b.one([]any{&live}, `SELECT version FROM queen.kv`)
		case "live":
			live = b.kv(put("k", `"value":{"a":1},"forever":true`))[0].version(t)
		case "number":
			live = b.kv(put("k", `"value":5.00,"forever":true`))[0].version(t)
		}
		op := c.op
		if strings.Contains(op, "%d") {
			op = fmt.Sprintf(op, live)
		}
		out, err := b.store.KVApply(t.Context(), store.DefaultTenant(), json.RawMessage(`[{"ns":"n","key":"k",`+op+`}]`))
		require.NoError(t, err, name)
		var answer []struct {
			Index   *int
			Op, Key string
			Applied *bool
			Reason  *string
			Value   json.RawMessage
			Version *int64
		}
		require.NoError(t, json.Unmarshal(out, &answer), name)
		got := answer[0]
		require.Zero(t, *got.Index, name)
		require.Contains(t, op, `"op":"`+got.Op+`"`, name)
		require.Equal(t, "k", got.Key, name)
		require.Equal(t, c.reason == "", *got.Applied, name)
		if c.reason != "" {
			require.Equal(t, c.reason, *got.Reason, name)
		} else {
			require.Nil(t, got.Reason, name)
		}
		require.Equal(t, compact(c.value), compact(string(got.Value)), name)
		switch {
		case c.version:
			require.Equal(t, live, *got.Version, name)
		case c.reason != "" || got.Op == "delete":
			require.Zero(t, *got.Version, name)
		default:
			require.Positive(t, *got.Version, name)
			require.NotEqual(t, live, *got.Version, name)
		}
		found := b.kv(getOp("k"))[0]
		require.Equal(t, c.after != gone || got.Op == "put" && c.reason == "", found["found"], name)
		text, err := b.query(`SELECT COALESCE((SELECT value::text FROM queen.kv WHERE key = 'k' AND (expires_at IS NULL OR expires_at > now())), 'null')`)
		require.NoError(t, err)
		require.Equal(t, compact(c.after), compact(text), name)
	}
}

func compact(doc string) string { return strings.ReplaceAll(doc, " ", "") }

func TestKVGet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	began := time.Now().Add(-time.Minute)
	w := b.kv(put("a/b", `"value":null,"forever":true`), put("t", `"value":[1,"x"],"ttlSeconds":3600`))
	got := b.kv(getOp("a/b"), getOp("none"), getOp("t"))
	require.Equal(t, element{"index": 0., "op": "get", "found": true, "key": "a/b", "value": nil, "version": w[0]["version"], "expiresAt": nil}, got[0].without("updatedAt"))
	require.Equal(t, element{"index": 1., "op": "get", "found": false, "key": "none"}, got[1])
	require.Equal(t, []any{1., "x"}, got[2]["value"])
	require.NotEqual(t, w[0]["version"], w[1]["version"])
	updated, err := time.Parse(time.RFC3339Nano, got[2]["updatedAt"].(string))
	require.NoError(t, err)
	require.WithinRange(t, updated, began, began.Add(time.Hour))
	expires, err := time.Parse(time.RFC3339Nano, got[2]["expiresAt"].(string))
	require.NoError(t, err)
	require.Equal(t, updated.Add(time.Hour), expires)
	require.True(t, strings.HasSuffix(got[2]["expiresAt"].(string), "+00:00"), "the rendering of PostgreSQL itself")
}

// A row is there until the instant of its expiry, and at it no more. One instant
// serves a whole call.
func TestKVExpiryIsExclusive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at) VALUES ('n', 'k', '1', 1, '2030-01-01T00:00:00Z')`)
	at := func(instant, ops string) []element {
		answer, err := b.query(`SELECT queen.kv_apply_v1($1, $2, $3::text::timestamptz, FALSE)`, ops, store.DefaultTenant(), instant)
		require.NoError(t, err)
		var all []element
		require.NoError(t, json.Unmarshal([]byte(answer), &all))
		return all
	}
	reads := string(list([]string{getOp("k"), `{"op":"getMany","ns":"n","keys":["k"]}`, `{"op":"getPrefix","ns":"n","prefix":"k"}`}))
	for _, c := range []struct {
		instant string
		live    bool
	}{{"2029-12-31T23:59:59.999999Z", true}, {"2030-01-01T00:00:00Z", false}, {"2031-01-01T00:00:00Z", false}} {
		got := at(c.instant, reads)
		require.Equal(t, c.live, got[0]["found"], c.instant)
		require.Equal(t, c.live, len(got[1]["rows"].([]any)) == 1, c.instant)
		require.Equal(t, c.live, len(got[2]["rows"].([]any)) == 1, c.instant)
	}
	require.Equal(t, "exists", at("2029-12-31T23:59:59.999999Z", `[{"op":"putIfAbsent","ns":"n","key":"k","value":1,"forever":true}]`)[0]["reason"])
	require.Equal(t, true, at("2030-01-01T00:00:00Z", `[{"op":"putIfAbsent","ns":"n","key":"k","value":1,"ttlSeconds":60}]`)[0]["applied"])
	var expires string
	b.one([]any{&expires}, `SELECT queen.iso_us_v1(expires_at) FROM queen.kv`)
	require.Equal(t, "2030-01-01T00:01:00.000000Z", expires, "from the instant of the call")
}

// The lineage of a row: created_at stays while it lives, and starts over behind its
// expiry. The expiry of a counter is that of its creation.
func TestKVLineage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	born := func(key string) (fresh, forever bool) {
		b.one([]any{&fresh, &forever}, `SELECT created_at > now() - INTERVAL '30 minutes', expires_at IS NULL FROM queen.kv WHERE key = $1`, key)
		return fresh, forever
	}
	for _, op := range []string{
		put("k", `"value":2,"ttlSeconds":9`), put("k", `"value":2,"ttlSeconds":9,"expect":1`), `{"op":"incr","ns":"n","key":"k","delta":1,"ttlSeconds":9}`,
	} {
		b.exec(`DELETE FROM queen.kv`)
		b.exec(`INSERT INTO queen.kv (namespace, key, value, version, created_at) VALUES ('n', 'k', '1', 1, now() - INTERVAL '1 hour')`)
		require.Equal(t, true, b.kv(op)[0]["applied"], op)
		fresh, forever := born("k")
		require.False(t, fresh, op)
		require.Equal(t, strings.Contains(op, "incr"), forever, "%s: a counter keeps its expiry, a put replaces it", op)
	}
	for _, op := range []string{
		put("k", `"value":2,"forever":true`), `{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true}`, incr("k", `"delta":1`),
	} {
		b.exec(`DELETE FROM queen.kv`)
		b.expired("k", `"text"`)
		require.Equal(t, true, b.kv(op)[0]["applied"], op)
		fresh, forever := born("k")
		require.True(t, fresh && forever, "%s: a new life with an expiry of its own", op)
	}
	b.exec(`DELETE FROM queen.kv`)
	b.expired("k", `1`)
	require.Equal(t, "absent", b.kv(`{"op":"delete","ns":"n","key":"k"}`)[0]["reason"])
	require.Equal(t, "[]", b.kvDump(), "an expired row is removed all the same")
}

// Single keys come first, in the order of (ns, key), those of one key in the order of
// the request; then the reads of many.
func TestKVOrderOfACall(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.kv(
		`{"op":"getMany","ns":"n","keys":["b","a"]}`,
		getOp("b"),
		put("b", `"value":2,"forever":true`),
		getOp("b"),
		`{"op":"getPrefix","ns":"n","prefix":"a"}`,
		put("a", `"value":1,"forever":true`),
	)
	for i, e := range got {
		require.Equal(t, float64(i), e["index"], "an element answers its operation")
	}
	require.Equal(t, []string{"getMany", "get", "put", "get", "getPrefix", "put"}, []string{
		got[0]["op"].(string), got[1]["op"].(string), got[2]["op"].(string), got[3]["op"].(string), got[4]["op"].(string), got[5]["op"].(string),
	})
	require.Equal(t, []any{"a", "b"}, keys(got[0]["rows"]))
	require.Equal(t, false, got[1]["found"], "before the write")
	require.Equal(t, true, got[3]["found"], "behind it")
	require.Equal(t, []any{"a"}, keys(got[4]["rows"]))
}

// keys of rows.
func keys(rows any) []any {
	out := []any{}
	for _, r := range rows.([]any) {
		out = append(out, r.(map[string]any)["key"])
	}
	return out
}

func TestKVGetMany(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("b", `"value":2,"forever":true`), put("é", `"value":3,"ttlSeconds":60`), put("B", `"value":1,"forever":true`))
	b.expired("dead", `1`)
	got := b.kv(`{"op":"getMany","ns":"n","keys":["z","é","b","dead","B","b","a"]}`)[0]
	require.Equal(t, []any{"B", "b", "b", "é"}, keys(got["rows"]), "ascending bytes, repeated as asked for")
	require.Equal(t, []any{"z", "dead", "a"}, got["missing"], "in the order of the request")
	require.Equal(t, false, got["truncated"])
	row := element(got["rows"].([]any)[0].(map[string]any))
	require.Equal(t, element{"key": "B", "value": 1., "expiresAt": nil}, row.without("version", "updatedAt"))
	require.Equal(t, element{"index": 0., "op": "getMany", "rows": []any{}, "missing": []any{}, "truncated": false}, b.kv(`{"op":"getMany","ns":"n","keys":[]}`)[0])
}

func TestKVGetPrefix(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, k := range []string{"a", "p", "p/1", "p/2", "p/3", "p%", "p_x", "pé", "q"} {
		b.kv(put(k, `"value":"v","forever":true`))
	}
	b.expired("p/0", `1`)
	page := func(rest string) element { return b.kv(`{"op":"getPrefix","ns":"n","prefix":` + rest + `}`)[0] }
	cases := []struct {
		rest  string
		keys  []any
		after any
	}{
		{`"p"`, []any{"p", "p%", "p/1", "p/2", "p/3", "p_x", "pé"}, nil},
		{`"p/"`, []any{"p/1", "p/2", "p/3"}, nil},
		{`"p/","limit":3`, []any{"p/1", "p/2", "p/3"}, nil},
		{`"p/","limit":2`, []any{"p/1", "p/2"}, "p/2"},
		{`"p/","limit":2,"after":"p/2"`, []any{"p/3"}, nil},
		{`"p/","limit":0`, []any{"p/1"}, "p/1"},
		{`"p/","after":""`, []any{"p/1", "p/2", "p/3"}, nil},
		{`"p/","after":"a"`, []any{"p/1", "p/2", "p/3"}, nil},
		{`"p/","after":"q"`, []any{}, nil},
		{`"p%"`, []any{"p%"}, nil},
		{`"p_"`, []any{"p_x"}, nil},
		{`"none"`, []any{}, nil},
	}
	for _, c := range cases {
		got := page(c.rest)
		require.Equal(t, c.keys, keys(got["rows"]), c.rest)
		require.Equal(t, c.after, got["nextAfter"], c.rest)
		require.Equal(t, c.after != nil, got["truncated"], c.rest)
	}
	only := page(`"p/","keysOnly":true`)
	require.Equal(t, []any{"p/1", "p/2", "p/3"}, keys(only["rows"]))
	require.Equal(t, element{"key": "p/1", "expiresAt": nil}, element(only["rows"].([]any)[0].(map[string]any)).without("version", "updatedAt"))
	with := element(page(`"p/"`)["rows"].([]any)[0].(map[string]any))
	require.Equal(t, "v", with["value"])
}

// A page reads what it shows, not what lies behind its prefix.
func TestKVPagesEndWithTheirPrefix(t *testing.T) {
	t.Parallel()
	b := setupPop(t)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version) SELECT 'n', 'a' || g, '1', g FROM generate_series(1, 5) AS g`)
	session, err := b.db.Session(t.Context())
	require.NoError(t, err)
	defer func() { _ = session.Close(t.Context()) }()
	calls := []string{
		`SELECT queen.kv_apply_v1('[{"op":"getPrefix","ns":"n","prefix":"a"}]', '00000000-0000-0000-0000-000000000001')`,
		`SELECT queen.kv_list_v1('00000000-0000-0000-0000-000000000001', 'n', 'a')`,
		`SELECT queen.kv_apply_v1('[{"op":"getPrefix","ns":"n","prefix":"b9","after":"b99","limit":4}]', '00000000-0000-0000-0000-000000000001')`,
		`SELECT queen.kv_apply_v1('[{"op":"get","ns":"n","key":"b5"},{"op":"getMany","ns":"n","keys":["b6","b7"]}]', '00000000-0000-0000-0000-000000000001')`,
		`SELECT queen.kv_apply_v1('[{"op":"incr","ns":"n","key":"b5","delta":1,"forever":true},{"op":"delete","ns":"n","key":"b6"}]', '00000000-0000-0000-0000-000000000001')`,
	}
	for _, call := range calls { // the plans are made while the table is small
		_, err := session.Exec(t.Context(), call)
		require.NoError(t, err)
	}
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version) SELECT 'n', 'b' || g, '1', g FROM generate_series(1, 5000) AS g ON CONFLICT DO NOTHING`)
	for _, call := range calls {
		require.Less(t, b.rowsRead(session, "kv", call), int64(20), call)
	}
}

// Four mebibytes of values are read in a call, up to the end of the row that crosses.
func TestKVReadBudget(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version)
		SELECT 'n', 'k' || lpad(g::text, 3, '0'), to_jsonb(repeat('x', 65534)), g FROM generate_series(1, 70) AS g`)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version) VALUES ('n', 'small', '1', 1)`)
	asked := make([]string, 0, 72)
	for i := range 70 {
		asked = append(asked, fmt.Sprintf(`"k%03d"`, i+1))
	}
	many := func(keys ...string) string { return `{"op":"getMany","ns":"n","keys":` + string(list(keys)) + `}` }
	const prefix = `{"op":"getPrefix","ns":"n","prefix":"k"}`

	full := b.kv(many(append([]string{`"absent"`, `"z"`}, asked...)...))[0]
	require.Len(t, full["rows"], 64, "64 values of 65536 bytes")
	require.Equal(t, true, full["truncated"])
	require.Equal(t, []any{"absent"}, full["missing"], "z was not looked for")
	exact := b.kv(many(asked[:64]...))[0]
	require.Len(t, exact["rows"], 64)
	require.Equal(t, false, exact["truncated"], "nothing was left out")
	crossing := b.kv(many(append([]string{`"small"`}, asked[:66]...)...), getOp("small"))[0]
	require.Len(t, crossing["rows"], 64, "the get has spent a byte, and small sorts last")
	crossing = b.kv(getOp("small"), many(asked[:65]...))[1]
	require.Len(t, crossing["rows"], 64, "the 64th crosses and is there")

	page := b.kv(prefix)[0]
	require.Len(t, page["rows"], 64)
	require.Equal(t, true, page["truncated"])
	require.Equal(t, "k064", page["nextAfter"])
	onlyKeys := b.kv(`{"op":"getPrefix","ns":"n","prefix":"k","keysOnly":true}`)[0]
	require.Len(t, onlyKeys["rows"], 70, "keys cost nothing")
	spent := b.kv(many(asked...), prefix, getOp("small"), `{"op":"getPrefix","ns":"n","prefix":"none"}`)
	require.Equal(t, element{"index": 1., "op": "getPrefix", "rows": []any{}, "truncated": true, "nextAfter": nil}, spent[1], "nothing is left for it")
	require.Equal(t, true, spent[2]["found"], "a get is always answered")
	require.Equal(t, false, spent[3]["truncated"])

	doc, err := b.store.KVList(t.Context(), store.DefaultTenant(), store.KVPage{Namespace: "n"})
	require.NoError(t, err)
	listed := object(t, doc)
	require.Len(t, listed["rows"], 64)
	require.Equal(t, 4194304., listed["bytes"])
	require.Equal(t, "k064", listed["nextAfter"])
	gets := b.kv(repeated(100, func(int) string { return getOp("k001") })...)
	require.False(t, slices.ContainsFunc(gets, func(e element) bool { return e["found"] != true }))
}

func TestKVNumbersStayWithinTheSizeOfAValue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	out, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{incr("k", `"delta":1e65535`)}))
	require.NoError(t, err)
	require.Contains(t, string(out[len(out)-100:]), `"applied": true`)
	before := b.count(`SELECT version FROM queen.kv`)
	_, err = b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{incr("k", `"delta":0.5`)}))
	var refused *store.KVRefused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "kv_value_too_large", refused.Reason)
	require.Equal(t, before, b.count(`SELECT version FROM queen.kv`))
}

// A required write that is not applied ends the call, and nothing of it stays.
func TestKVRequired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	v := b.kv(put("k", `"value":{"a":1},"forever":true`), put("c", `"value":5,"forever":true`), put("t", `"value":"x","forever":true`))
	cases := []struct {
		op, reason, value string
		version           int64
	}{
		{`{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true,"required":true}`, "exists", `{"a": 1}`, v[0].version(t)},
		{put("none", `"value":2,"forever":true,"required":true,"expect":3`), "absent", `null`, 0},
		{put("k", `"value":2,"forever":true,"required":true,"expect":900000`), "version", `{"a": 1}`, v[0].version(t)},
		{`{"op":"delete","ns":"n","key":"none","required":true}`, "absent", `null`, 0},
		{incr("c", `"delta":1,"max":5,"required":true`), "limit", `5`, v[1].version(t)},
		{incr("none", `"delta":1,"max":0,"required":true`), "limit", `0`, 0},
		{incr("t", `"delta":1,"required":true`), "type", `0`, v[2].version(t)},
	}
	before := b.kvDump()
	for _, c := range cases {
		_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{getOp("a"), put("zzz", `"value":1,"forever":true`), put("0", `"value":1,"forever":true`), c.op}))
		var lost *store.KVPrecondition
		require.ErrorAs(t, err, &lost, c.op)
		require.Equal(t, "23514", sqlState(t, err), c.op)
		require.True(t, lost.Known, c.op)
		require.Equal(t, 3, lost.Index, c.op)
		require.Equal(t, c.reason, lost.Reason, c.op)
		require.Equal(t, c.version, lost.Version, c.op)
		require.JSONEq(t, c.value, string(lost.Value), c.op)
		require.Equal(t, store.Permanent, store.Classify(err), c.op)
		require.False(t, store.Ambiguous(err), c.op)
		require.Equal(t, before, b.kvDump(), c.op)
	}
	require.Equal(t, true, b.kv(put("k", fmt.Sprintf(`"value":2,"forever":true,"required":true,"expect":%d`, v[0].version(t))))[0]["applied"])
	require.Equal(t, true, b.kv(`{"op":"delete","ns":"n","key":"none","required":true,"expect":0}`)[0]["applied"])
}

// A verdict is cut at 4096 characters; one that was cut says nothing.
func TestKVLongVerdictsAreCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	verdict := func(length int) *store.KVPrecondition {
		b.kv(put("k", fmt.Sprintf(`"value":%q,"forever":true`, strings.Repeat("é", length))))
		_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{`{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true,"required":true}`}))
		var lost *store.KVPrecondition
		require.ErrorAs(t, err, &lost)
		return lost
	}
	short := verdict(10)
	detail := fmt.Sprintf(`{"index" : 0, "op" : "putIfAbsent", "ns" : "n", "key" : "k", "reason" : "exists", "version" : %d, "value" : ""}`, short.Version)
	room := 4096 - len(detail)
	require.True(t, verdict(room).Known)
	require.Equal(t, store.KVPrecondition{}, bare(verdict(room+1)))
}

// bare is a verdict without its cause.
func bare(v *store.KVPrecondition) store.KVPrecondition {
	return store.KVPrecondition{Known: v.Known, Index: v.Index, Reason: v.Reason, Version: v.Version, Value: v.Value}
}

func TestKVVersionsAreUniqueAndLow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	seen := map[int64]bool{}
	for range 20 {
		v := b.kv(put("k", `"value":1,"forever":true`))[0].version(t)
		require.False(t, seen[v])
		require.Less(t, v, int64(1_000_000))
		seen[v] = true
	}
	var cache, start int64
	b.one([]any{&cache, &start}, `SELECT cache_size, start_value FROM pg_sequences WHERE schemaname = 'queen' AND sequencename = 'kv_version_seq'`)
	require.Equal(t, []int64{1000, 1}, []int64{cache, start})
}

func TestKVList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("a", `"value":{"x":1},"forever":true`), put("b", `"value":2,"ttlSeconds":60`), put("c", `"value":3,"forever":true`))
	b.expired("b2", `"dead"`)
	page := func(p store.KVPage) map[string]any {
		p.Namespace = "n"
		doc, err := b.store.KVList(t.Context(), store.DefaultTenant(), p)
		require.NoError(t, err)
		return object(t, doc)
	}
	all := page(store.KVPage{})
	require.Equal(t, []any{"a", "b", "c"}, keys(all["rows"]))
	require.Equal(t, []any{false, nil, float64(len(`{"x": 1}23`))}, []any{all["truncated"], all["nextAfter"], all["bytes"]})
	first := element(all["rows"].([]any)[0].(map[string]any))
	require.Equal(t, element{"key": "a", "value": map[string]any{"x": 1.}, "expiresAt": nil, "expired": false}, first.without("version", "updatedAt"))
	second := element(all["rows"].([]any)[1].(map[string]any))
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, second["expiresAt"])
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, second["updatedAt"])

	dead := page(store.KVPage{IncludeExpired: true, KeysOnly: true})
	require.Equal(t, []any{"a", "b", "b2", "c"}, keys(dead["rows"]))
	require.Zero(t, dead["bytes"])
	third := element(dead["rows"].([]any)[2].(map[string]any))
	require.Equal(t, true, third["expired"])
	require.NotContains(t, third, "value")

	part := page(store.KVPage{Limit: 2, After: "a"})
	require.Equal(t, []any{"b", "c"}, keys(part["rows"]))
	part = page(store.KVPage{Limit: -3})
	require.Equal(t, []any{[]any{"a"}, true, "a"}, []any{keys(part["rows"]), part["truncated"], part["nextAfter"]})
	require.Empty(t, page(store.KVPage{Prefix: strings.Repeat("x", 4000)})["rows"], "a prefix that is too long matches nothing")
	require.Equal(t, []any{"b"}, keys(page(store.KVPage{Prefix: "b"})["rows"]))

	doc, err := b.store.KVList(t.Context(), store.DefaultTenant(), store.KVPage{Namespace: "unheard-of"})
	require.NoError(t, err)
	require.JSONEq(t, `{"rows":[],"truncated":false,"nextAfter":null,"bytes":0}`, string(doc))
	_, err = b.store.KVList(t.Context(), store.DefaultTenant(), store.KVPage{Namespace: "Bad"})
	var refused *store.KVRefused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "kv_bad_namespace", refused.Reason)

	b.exec(`INSERT INTO queen.kv (namespace, key, value, version) SELECT 'many', 'k' || g, '1', g FROM generate_series(1, 1001) AS g`)
	doc, err = b.store.KVList(t.Context(), store.DefaultTenant(), store.KVPage{Namespace: "many", Limit: 5000})
	require.NoError(t, err)
	require.Len(t, object(t, doc)["rows"], 1000)
	doc, err = b.store.KVList(t.Context(), store.DefaultTenant(), store.KVPage{Namespace: "many"})
	require.NoError(t, err)
	require.Len(t, object(t, doc)["rows"], 100)
}

func TestKVNamespaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO queen.kv (namespace, key, value, version, expires_at) VALUES
		('b', 'k', '1', 1, now() - INTERVAL '1 day'), ('b', 'l', '1', 2, NULL), ('a-', 'k', '1', 3, NULL), ('a.', 'k', '1', 4, NULL)`)
	doc, err := b.store.KVNamespaces(t.Context(), store.DefaultTenant())
	require.NoError(t, err)
	require.JSONEq(t, `[{"namespace":"a-","keys":1},{"namespace":"a.","keys":1},{"namespace":"b","keys":2}]`, string(doc))
}

// The helpers answer for every input.
func TestKVHelpersAreTotal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for call, want := range map[string]string{
		`queen.kv_live_v1(NULL, now())`:                                     "true",
		`queen.kv_live_v1(now(), now())`:                                    "false",
		`queen.kv_live_v1(now() + INTERVAL '1 us', now())`:                  "true",
		`queen.kv_live_v1(now(), NULL)`:                                     "false",
		`queen.kv_live_v1(NULL, NULL)`:                                      "true",
		`queen.kv_ver_v1(7, NULL, now())`:                                   "7",
		`queen.kv_ver_v1(7, now(), now())`:                                  "0",
		`queen.kv_ver_v1(NULL, NULL, now())`:                                "0",
		`queen.kv_num_v1('1.50', NULL, now())`:                              "1.50",
		`queen.kv_num_v1('"1"', NULL, now())`:                               "0",
		`queen.kv_num_v1('[1]', NULL, now())`:                               "0",
		`queen.kv_num_v1('null', NULL, now())`:                              "0",
		`queen.kv_num_v1(NULL, NULL, NULL)`:                                 "0",
		`queen.kv_num_v1('5', now(), now())`:                                "0",
		`queen.kv_prefix_end_v1('ab')`:                                      "ac",
		`COALESCE(queen.kv_prefix_end_v1(''), 'none')`:                      "none",
		`COALESCE(queen.kv_prefix_end_v1(NULL), 'none')`:                    "none",
		`queen.kv_prefix_end_v1('a' || chr(55295)) = 'a' || chr(57344)`:     "true",
		`queen.kv_prefix_end_v1('a' || chr(1114111) || chr(1114111)) = 'b'`: "true",
		`COALESCE(queen.kv_prefix_end_v1(repeat(chr(1114111), 3)), 'none')`: "none",
		`queen.kv_prefix_end_v1(chr(127)) = chr(128)`:                       "true",
		`queen.kv_check_names_v1('n', 'k')`:                                 "true",
		`COALESCE(queen.kv_limit_v1(NULL), 0)`:                              "100",
		`(SELECT count(*) FROM generate_series(1, 5000) AS g WHERE queen.kv_prefix_end_v1('x' || chr(g) COLLATE "C") > 'x' || chr(g))`: "5000",
	} {
		got, err := b.query(`SELECT (` + call + `)::text`)
		require.NoError(t, err, call)
		require.Equal(t, want, got, call)
	}
	for call, state := range map[string]string{
		`queen.kv_check_names_v1(NULL, 'k')`:              "22023",
		`queen.kv_check_names_v1('n', NULL)`:              "22023",
		`queen.kv_check_names_v1('n', repeat('k', 513))`:  "22001",
		`queen.kv_check_names_v1(repeat('n', 9999), 'k')`: "22023",
	} {
		require.Equal(t, state, sqlState(t, b.try(`SELECT (`+call+`)::text`)), call)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'queen'::regnamespace AND (proname LIKE 'kv\_%' OR proname LIKE 'log\_timer%')
		AND (prosecdef OR NOT has_function_privilege('public', oid, 'EXECUTE'))`), "everybody may, with their own rights")
	require.EqualValues(t, 5, b.count(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'queen'::regnamespace AND proargnames IS NULL AND provolatile = 'i'
		AND proname IN ('kv_live_v1', 'kv_ver_v1', 'kv_num_v1', 'kv_prefix_end_v1', 'kv_check_names_v1')`), "known by a list of types")
}

// The shard of a row is computed by the table, for ever in the same way.
func TestKVShards(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("a", `"value":1,"forever":true`), put("b", `"value":1,"forever":true`))
	require.Zero(t, b.count(`SELECT count(*) FROM queen.kv WHERE shard <> hashtextextended(key, 0) & 63`))
	require.Len(t, store.Shards(0), store.SweepShards)
	require.Equal(t, []int16{63, 0, 1}, store.Shards(-1)[:3])
	require.Equal(t, []int16{5, 6}, store.Shards(69)[:2])
}
