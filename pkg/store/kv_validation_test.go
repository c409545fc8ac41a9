package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
)

// Every rule of the contract, with both sides of each limit. An empty reason is an
// operation that is admitted.
func TestKVOperationsAreValidated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const name, put, incr = `"ns":"n","key":"k"`, `"op":"put","ns":"n","key":"k","value":1`, `"op":"incr","ns":"n","key":"k","forever":true`
	value := func(bytes int) string { return `"` + strings.Repeat("x", bytes-2) + `"` }
	cases := []struct{ name, op, reason string }{
		{"no object", `5`, "kv_bad_request"},
		{"an array", `[]`, "kv_bad_request"},
		{"null", `null`, "kv_bad_request"},
		{"no op", `{` + name + `}`, "kv_unknown_op"},
		{"another op", `{"op":"GET",` + name + `}`, "kv_unknown_op"},
		{"an op that is no text", `{"op":["get"],` + name + `}`, "kv_unknown_op"},
		{"a tenant", `{"op":"get",` + name + `,"tenant":null}`, "kv_tenant_not_an_input"},
		{"a tenant id", `{"op":"get",` + name + `,"tenantId":"x"}`, "kv_tenant_not_an_input"},
		{"an inner tenant", `{"op":"get",` + name + `,"_tenant":"x"}`, "kv_tenant_not_an_input"},
		{"unknown fields", `{"op":"get",` + name + `,"value":1,"expect":-1,"foo":{}}`, ""},

		{"no prefix", `{"op":"getPrefix","ns":"n"}`, "kv_prefix_required"},
		{"an empty prefix", `{"op":"getPrefix","ns":"n","prefix":""}`, "kv_prefix_required"},
		{"a prefix that is no text", `{"op":"getPrefix","ns":"n","prefix":5}`, "kv_prefix_required"},
		{"a long prefix", `{"op":"getPrefix","ns":"n","prefix":"` + strings.Repeat("p", 513) + `"}`, "kv_key_too_large"},
		{"a prefix in no namespace", `{"op":"getPrefix","prefix":"p"}`, "kv_bad_namespace"},
		{"a prefix with everything", `{"op":"getPrefix","ns":"n","prefix":"p","after":null,"limit":null,"keysOnly":null}`, ""},
		{"a limit that is clamped", `{"op":"getPrefix","ns":"n","prefix":"p","limit":-1e9}`, ""},
		{"a fractional limit", `{"op":"getPrefix","ns":"n","prefix":"p","limit":1.5}`, "kv_bad_request"},
		{"a limit that is no number", `{"op":"getPrefix","ns":"n","prefix":"p","limit":"5"}`, "kv_bad_request"},
		{"keysOnly that is no boolean", `{"op":"getPrefix","ns":"n","prefix":"p","keysOnly":1}`, "kv_bad_request"},
		{"a cursor that is no text", `{"op":"getPrefix","ns":"n","prefix":"p","after":1}`, "kv_bad_request"},

		{"no keys", `{"op":"getMany","ns":"n"}`, "kv_bad_request"},
		{"keys that are no array", `{"op":"getMany","ns":"n","keys":"k"}`, "kv_bad_request"},
		{"an empty list of keys", `{"op":"getMany","ns":"n","keys":[]}`, ""},
		{"an empty list in no namespace", `{"op":"getMany","keys":[]}`, "kv_bad_namespace"},
		{"an empty key among others", `{"op":"getMany","ns":"n","keys":["a",""]}`, "kv_bad_key"},
		{"a number among keys", `{"op":"getMany","ns":"n","keys":["a",1]}`, "kv_bad_key"},
		{"a long key among others", `{"op":"getMany","ns":"n","keys":["a","` + strings.Repeat("k", 513) + `"]}`, "kv_key_too_large"},

		{"no namespace", `{"op":"get","key":"k"}`, "kv_bad_namespace"},
		{"an empty namespace", `{"op":"get","ns":"","key":"k"}`, "kv_bad_namespace"},
		{"a namespace that is no text", `{"op":"get","ns":5,"key":"k"}`, "kv_bad_namespace"},
		{"a namespace of 64 characters", `{"op":"get","ns":"` + strings.Repeat("a", 64) + `","key":"k"}`, ""},
		{"a namespace of 65 characters", `{"op":"get","ns":"` + strings.Repeat("a", 65) + `","key":"k"}`, "kv_bad_namespace"},
		{"all that a namespace may hold", `{"op":"get","ns":"09az._-","key":"k"}`, ""},
		{"a namespace that begins with a dot", `{"op":"get","ns":".a","key":"k"}`, "kv_bad_namespace"},
		{"a namespace that begins with an underscore", `{"op":"get","ns":"_a","key":"k"}`, "kv_bad_namespace"},
		{"a namespace that begins with a hyphen", `{"op":"get","ns":"-a","key":"k"}`, "kv_bad_namespace"},
		{"a namespace in capitals", `{"op":"get","ns":"A","key":"k"}`, "kv_bad_namespace"},
		{"a namespace with an umlaut", `{"op":"get","ns":"ä","key":"k"}`, "kv_bad_namespace"},
		{"a namespace with a line break", `{"op":"get","ns":"a\n","key":"k"}`, "kv_bad_namespace"},
		{"no key", `{"op":"get","ns":"n"}`, "kv_bad_key"},
		{"an empty key", `{"op":"get","ns":"n","key":""}`, "kv_bad_key"},
		{"a key that is no text", `{"op":"get","ns":"n","key":7}`, "kv_bad_key"},
		{"a key of 512 bytes", `{"op":"get","ns":"n","key":"` + strings.Repeat("é", 256) + `"}`, ""},
		{"a key of 513 bytes", `{"op":"get","ns":"n","key":"` + strings.Repeat("é", 256) + `k"}`, "kv_key_too_large"},
		{"a handler's key", `{"op":"get","ns":"n","key":"@p/q/Default/__QUEUE_MODE__/x y"}`, ""},

		{"a ttl of 0", `{` + put + `,"ttlSeconds":0}`, "kv_bad_ttl"},
		{"a ttl of 1", `{` + put + `,"ttlSeconds":1}`, ""},
		{"a negative ttl", `{` + put + `,"ttlSeconds":-1}`, "kv_bad_ttl"},
		{"a fractional ttl", `{` + put + `,"ttlSeconds":1.5}`, "kv_bad_ttl"},
		{"a whole ttl with a fraction of zeros", `{` + put + `,"ttlSeconds":2.0}`, ""},
		{"a ttl that is no number", `{` + put + `,"ttlSeconds":"1"}`, "kv_bad_ttl"},
		{"a ttl that is null", `{` + put + `,"ttlSeconds":null}`, "kv_bad_ttl"},
		{"the longest ttl", `{` + put + `,"ttlSeconds":100000000000}`, ""},
		{"a longer one", `{` + put + `,"ttlSeconds":100000000001}`, "kv_bad_ttl"},
		{"a ttl beyond all numbers", `{` + put + `,"ttlSeconds":1e400}`, "kv_bad_ttl"},
		{"no expiry", `{` + put + `}`, "kv_expiry_not_specified"},
		{"two expiries", `{` + put + `,"ttlSeconds":1,"forever":true}`, "kv_expiry_not_specified"},
		{"a bad ttl beside forever", `{` + put + `,"ttlSeconds":0,"forever":true}`, "kv_bad_ttl"},
		{"forever false", `{` + put + `,"forever":false}`, "kv_expiry_not_specified"},
		{"forever that is no boolean", `{` + put + `,"forever":1}`, "kv_expiry_not_specified"},
		{"forever false beside a ttl", `{` + put + `,"forever":false,"ttlSeconds":1}`, ""},
		{"an incr without expiry", `{"op":"incr",` + name + `,"delta":1}`, "kv_expiry_not_specified"},
		{"a delete with half an expiry", `{"op":"delete",` + name + `,"ttlSeconds":"x"}`, ""},

		{"no value", `{"op":"put",` + name + `,"forever":true}`, "kv_bad_request"},
		{"a value of null", `{"op":"put",` + name + `,"value":null,"forever":true}`, ""},
		{"a value of 65536 bytes", `{"op":"put",` + name + `,"forever":true,"value":` + value(65536) + `}`, ""},
		{"a value of 65537 bytes", `{"op":"put",` + name + `,"forever":true,"value":` + value(65537) + `}`, "kv_value_too_large"},
		{"a value that is short only as it is written", `{"op":"put",` + name + `,"forever":true,"value":1e65536}`, "kv_value_too_large"},
		{"a value that is long only as it is written", `{"op":"put",` + name + `,"forever":true,"value":[` + strings.Repeat(" ", 70000) + `]}`, ""},

		{"expect 0", `{` + put + `,"forever":true,"expect":0}`, ""},
		{"a negative expect", `{` + put + `,"forever":true,"expect":-1}`, "kv_bad_expect"},
		{"a fractional expect", `{` + put + `,"forever":true,"expect":1.5}`, "kv_bad_expect"},
		{"expect null", `{` + put + `,"forever":true,"expect":null}`, "kv_bad_expect"},
		{"expect that is no number", `{"op":"delete",` + name + `,"expect":"1"}`, "kv_bad_expect"},
		{"expect beyond every version", `{` + put + `,"forever":true,"expect":9223372036854775808}`, ""},
		{"putIfAbsent that expects 0", `{"op":"putIfAbsent",` + name + `,"value":1,"forever":true,"expect":0.0}`, ""},
		{"putIfAbsent that expects more", `{"op":"putIfAbsent",` + name + `,"value":1,"forever":true,"expect":1}`, "kv_bad_expect"},

		{"incr with expect", `{` + incr + `,"delta":1,"expect":0}`, "kv_bad_request"},
		{"no delta", `{` + incr + `}`, "kv_bad_request"},
		{"a delta that is no number", `{` + incr + `,"delta":"1"}`, "kv_bad_request"},
		{"a bound that is no number", `{` + incr + `,"delta":1,"min":"0"}`, "kv_bad_request"},
		{"a bound that is null", `{` + incr + `,"delta":1,"max":null}`, "kv_bad_request"},
		{"a fractional negative delta within bounds", `{` + incr + `,"delta":-1.5,"min":-2,"max":9e9}`, ""},
		{"a delta of 65536 digits", `{` + incr + `,"delta":1e65535,"max":0}`, ""},
		{"a delta of 65537 digits", `{` + incr + `,"delta":1e65536,"max":0}`, "kv_value_too_large"},
		{"a bound of 65537 digits", `{` + incr + `,"delta":1,"max":1e65536}`, "kv_value_too_large"},
		{"required that is no boolean", `{` + put + `,"forever":true,"required":"yes"}`, "kv_bad_request"},
		{"required that is null", `{"op":"delete",` + name + `,"required":null}`, "kv_bad_request"},
		{"required false", `{` + incr + `,"delta":1,"required":false,"max":0}`, ""},
	}
	for _, c := range cases {
		// Alone, and among others, which takes another way.
		for _, ops := range [][]string{{c.op}, {getOp("other"), c.op}} {
			b.exec(`DELETE FROM queen.kv`)
			out, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list(ops))
			if c.reason == "" {
				require.NoError(t, err, c.name)
				b.elements(out, len(ops))
				continue
			}
			var refused *store.KVRefused
			require.ErrorAs(t, err, &refused, c.name)
			require.Equal(t, c.reason, refused.Reason, c.name)
			large := strings.HasSuffix(c.reason, "_too_large")
			require.Equal(t, large, refused.TooLarge, c.name)
			require.Equal(t, map[bool]string{false: "22023", true: "22001"}[large], sqlState(t, err), c.name)
			require.Contains(t, refused.Detail, fmt.Sprintf("operation %d: ", len(ops)-1), c.name)
			require.Equal(t, store.Permanent, store.Classify(err), c.name)
		}
	}
}

// The rules of a whole call, in and outside of a transaction.
func TestKVCallsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gets := func(n int) string {
		return string(list(repeated(n, func(i int) string { return getOp(fmt.Sprint(i)) })))
	}
	many := func(keys int, more ...string) string {
		op := `{"op":"getMany","ns":"n","keys":` + string(list(repeated(keys, func(i int) string { return fmt.Sprintf(`"%d"`, i) }))) + `}`
		return string(list(append([]string{op}, more...)))
	}
	pages := func(n, last int) string {
		return string(list(repeated(n, func(i int) string {
			if i < n-1 {
				return `{"op":"getPrefix","ns":"n","prefix":"p","limit":5000}` // counts as 1000
			}
			return fmt.Sprintf(`{"op":"getPrefix","ns":"n","prefix":"p","limit":%d}`, last)
		})))
	}
	cases := []struct {
		name, ops string
		inWire    bool
		reason    string
	}{
		{"no array", `{}`, false, "kv_bad_request"},
		{"a text", `"x"`, false, "kv_bad_request"},
		{"nothing", `[]`, false, ""},
		{"256 operations", gets(256), false, ""},
		{"257 operations", gets(257), false, "kv_too_many_ops"},
		{"64 operations in a transaction", gets(64), true, ""},
		{"65 operations in a transaction", gets(65), true, "kv_too_many_ops"},
		{"too many, and one is malformed", gets(257)[:len(gets(257))-1] + `,5]`, false, "kv_too_many_ops"},
		{"4096 keys", many(4095, getOp("x")), false, ""},
		{"4097 keys", many(4096, getOp("x")), false, "kv_too_many_keys"},
		{"256 keys in a transaction", many(256), true, ""},
		{"257 keys in a transaction", many(257), true, "kv_too_many_keys"},
		{"4096 rows of pages", pages(5, 96), false, ""},
		{"4097 rows of pages", pages(5, 97), false, "kv_too_many_keys"},
		{"a page of the usual length", many(3997, `{"op":"getPrefix","ns":"n","prefix":"p"}`), false, "kv_too_many_keys"},
		{"a page in a transaction", `[{"op":"getPrefix","ns":"n"}]`, true, "kv_get_prefix_not_allowed_in_transaction"},
		{"two writes of a key", string(list([]string{put("k", `"value":1,"forever":true`), `{"op":"delete","ns":"n","key":"k"}`})), false, "kv_duplicate_key_in_call"},
		{"two increments of a key", string(list([]string{incr("k", `"delta":1`), incr("k", `"delta":1`)})), false, "kv_duplicate_key_in_call"},
		{"the same key in two namespaces", string(list([]string{incr("k", `"delta":1`), `{"op":"delete","ns":"n.","key":"k"}`})), false, ""},
		{"names that join to the same", string(list([]string{`{"op":"delete","ns":"n","key":"nk"}`, `{"op":"delete","ns":"nn","key":"k"}`})), false, ""},
		{"reads of a key that is written", string(list([]string{getOp("k"), put("k", `"value":1,"forever":true`), getOp("k")})), false, ""},
		{"the first fault counts", string(list([]string{incr("k", `"delta":1`), incr("k", `"delta":1`), `5`})), false, "kv_duplicate_key_in_call"},
		{"also when it is another", string(list([]string{incr("k", `"delta":1`), `5`, incr("k", `"delta":1`)})), false, "kv_bad_request"},
	}
	for _, c := range cases {
		b.exec(`DELETE FROM queen.kv`)
		answer, err := b.kvRaw(c.ops, c.inWire)
		if c.reason == "" {
			require.NoError(t, err, c.name)
			require.True(t, strings.HasPrefix(answer, "["), c.name)
			continue
		}
		require.ErrorContains(t, err, c.reason, c.name)
		require.Equal(t, "22023", sqlState(t, err), c.name)
	}
	require.Empty(t, b.kv(), "an empty array is answered by one")

	_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), []byte(`{}`))
	var refused *store.KVRefused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, store.KVBadRequest, refused.Reason)
	for _, call := range []string{
		`SELECT queen.kv_apply_v1('[]', NULL)`, `SELECT queen.kv_apply_v1('[{"op":"get","ns":"n","key":"k"}]', NULL)`,
		`SELECT queen.kv_list_v1(NULL, 'n')`, `SELECT queen.kv_namespaces_v1(NULL)`,
	} {
		require.ErrorContains(t, b.try(call), "kv_bad_request", call)
	}
}

// What jsonb itself cannot hold is a bad request too.
func TestKVOperationsThatJSONBRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, value := range []string{`"\u0000"`, `"\ud800"`, `1e200000`, strings.Repeat("[", 20000) + strings.Repeat("]", 20000), `{`} {
		_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{put("k", `"forever":true,"value":`+value)}))
		var refused *store.KVRefused
		require.ErrorAs(t, err, &refused, "%.20s", value)
		require.Equal(t, store.KVBadRequest, refused.Reason)
	}
	require.Equal(t, "[]", b.kvDump())
}

// A fault at the end leaves no trace of what stands before it.
func TestKVFaultsComeBeforeWrites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.kv(put("old", `"value":1,"forever":true`))
	before := b.kvDump()
	_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{
		put("a", `"value":1,"forever":true`), `{"op":"delete","ns":"n","key":"old"}`, `{"op":"nonsense"}`,
	}))
	require.Error(t, err)
	require.Equal(t, before, b.kvDump())
}

func TestKVTenantsSeeTheirOwnAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := uuid.New()
	b.kv(put("k", `"value":1,"forever":true`))
	out, err := b.store.KVApply(t.Context(), other, list([]string{
		getOp("k"), `{"op":"getMany","ns":"n","keys":["k"]}`, `{"op":"getPrefix","ns":"n","prefix":"k"}`, `{"op":"delete","ns":"n","key":"k"}`,
	}))
	require.NoError(t, err)
	all := b.elements(out, 4)
	require.Equal(t, false, all[0]["found"])
	require.Equal(t, []any{"k"}, all[1]["missing"])
	require.Empty(t, all[2]["rows"])
	require.Equal(t, "absent", all[3]["reason"])
	page, err := b.store.KVList(t.Context(), other, store.KVPage{Namespace: "n"})
	require.NoError(t, err)
	require.Empty(t, object(t, page)["rows"])
	names, err := b.store.KVNamespaces(t.Context(), other)
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(names))
	require.Equal(t, true, b.kv(getOp("k"))[0]["found"])
}

// try runs a statement that may fail.
func (b *bench) try(sql string, args ...any) error {
	b.t.Helper()
	_, err := b.query(sql, args...)
	return err
}

func TestKVErrorsOfTheServerStayWhatTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`ALTER TABLE queen.kv RENAME TO kv_gone`)
	_, err := b.store.KVApply(t.Context(), store.DefaultTenant(), list([]string{getOp("k")}))
	require.Equal(t, store.RetryLater, store.Classify(err))
	require.NotErrorAs(t, err, new(*store.KVRefused))
}
