package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// What the routes of keys may answer to anything at all, while nobody has switched
// them off, no quota is set, and the server is well.
var (
	kvBadRequests = []string{
		"kv_bad_body", "kv_bad_expect", "kv_bad_key", "kv_bad_namespace", "kv_bad_request", "kv_bad_ttl", "kv_duplicate_key_in_call",
		"kv_expiry_not_specified", "kv_field_in_path", "kv_no_query_string", "kv_prefix_required", "kv_tenant_not_an_input",
		"kv_too_many_keys", "kv_too_many_ops", "kv_unknown_op",
	}
	kvTooLarge = []string{"kv_key_too_large", "kv_value_too_large"}
)

// listed tells what is wrong with an answer, or nothing.
func listed(a harness.Answer) error {
	var o object
	body := json.NewDecoder(bytes.NewReader(a.Body))
	body.UseNumber() // a counter has any size
	if err := body.Decode(&o); err != nil {
		return fmt.Errorf("no JSON object: %s", a)
	}
	reason, _ := o["reason"].(string)
	switch {
	case a.Status == http.StatusOK && o["error"] == nil:
	case a.Status == http.StatusBadRequest && o["error"] == "kv_bad_request" && slices.Contains(kvBadRequests, reason):
	case a.Status == http.StatusRequestEntityTooLarge && o["error"] == "payload_too_large" && slices.Contains(kvTooLarge, reason):
	case a.Status == http.StatusNotFound && o["code"] == "no_such_route": // a path without a key
	default:
		return fmt.Errorf("not among what may be answered: %s", a)
	}
	return nil
}

// FuzzKVRequest sends anything as a batch. Its seeds are a part of every run.
func FuzzKVRequest(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `{}`, `[]`, `[[]]`, `[null]`, `{"operations":null}`, `{"operations":[],"operations":[{}]}`, `[] []`, "\xff", `"\ud800"`, `[{"op":7}]`,
		`[{"op":"get","ns":"fuzz","key":"\u0000"}]`, `[{"op":"get","ns":"fuzz","key":"\ud800"}]`, `[{"op":"get","ns":null,"key":[]}]`,
		`[{"op":"put","ns":"fuzz","key":"k","value":"\u0000","forever":true}]`, `[{"op":"put","ns":"fuzz","key":"k","value":1e999999,"forever":true}]`,
		`[{"op":"put","ns":"fuzz","key":"k","value":1e-99999,"ttlSeconds":1e400}]`, `[{"op":"put","ns":"fuzz","key":"k","value":1,"ttlSeconds":99999999999999999999}]`,
		`[{"op":"put","ns":"fuzz","key":"k","value":1,"ttlSeconds":9223372036854775807}]`, `[{"op":"put","ns":"fuzz","key":"k","value":1,"forever":1}]`,
		`[{"op":"put","ns":"fuzz","key":"k","value":1,"forever":true,"expect":1e400}]`, `[{"op":"put","ns":"fuzz","key":"k","value":1,"forever":true,"expect":9223372036854775808}]`,
		`[{"op":"incr","ns":"fuzz","key":"c","delta":1e300,"forever":true}]`, `[{"op":"incr","ns":"fuzz","key":"c","delta":1e-16383,"forever":true}]`,
		`[{"op":"incr","ns":"fuzz","key":"c","delta":9e131071,"forever":true,"max":1e131071}]`, `[{"op":"incr","ns":"fuzz","key":"c","delta":NaN,"forever":true}]`,
		`[{"op":"getPrefix","ns":"fuzz","prefix":"\uffff","limit":-1e9}]`, `[{"op":"getPrefix","ns":"fuzz","prefix":"k","limit":1.5,"keysOnly":"yes"}]`,
		`[{"op":"getPrefix","ns":"fuzz","prefix":"k","after":7,"limit":"all"}]`, `[{"op":"getPrefix","ns":"fuzz","prefix":"k","limit":null,"keysOnly":null,"after":null}]`,
		`[{"op":"getMany","ns":"fuzz","keys":[null,7,"k",{}]}]`, `[{"op":"getMany","ns":"fuzz","keys":["k","k"]}]`,
		`[{"op":"delete","ns":"fuzz","key":"k","required":null}]`, `[{"op":"put","op":"get","ns":"fuzz","key":"k"}]`,
		`{"operations":[{"op":"put","ns":"fuzz","key":"k","value":` + strings.Repeat("[", 3000) + strings.Repeat("]", 3000) + `,"forever":true}]}`,
		strings.Repeat("[", 20000),
	} {
		f.Add([]byte(seed))
	}
	b := harness.Shared(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		a, err := b.Call(t.Context(), http.MethodPost, kvPath, body, "Content-Type", "application/json")
		require.NoError(t, err)
		require.NoError(t, listed(a), "%.500q", body)
	})
}

// TestKVRandomRequests walks through requests that are nearly right, on every route.
func TestKVRandomRequests(t *testing.T) {
	t.Parallel()
	b := harness.Shared(t)
	const walkers = 4
	steps := 250
	if harness.Long() {
		steps = 20000
	}
	rng, _ := seeded(t)
	var wg sync.WaitGroup
	answers := make([]map[int]int, walkers)
	for w := range walkers {
		m := &mutator{Rand: rand.New(rand.NewPCG(rng.Uint64(), 3)), ns: namespace()}
		answers[w] = map[int]int{}
		wg.Go(func() {
			for range steps {
				method, path, body := m.request()
				a, err := b.Call(t.Context(), method, path, body, "Content-Type", "application/json")
				if err == nil {
					err = listed(a)
				}
				if err != nil {
					t.Errorf("%s %s %.2000q: %v", method, path, body, err)
					return
				}
				answers[w][a.Status]++
			}
		})
	}
	wg.Wait()
	all := map[int]int{}
	for _, by := range answers {
		for status, n := range by {
			all[status] += n
		}
	}
	t.Logf("%v", all)
	for _, status := range []int{http.StatusOK, http.StatusBadRequest, http.StatusRequestEntityTooLarge} {
		require.Positive(t, all[status], "the walk gets everywhere")
	}
}

// mutator makes requests up.
type mutator struct {
	*rand.Rand
	ns string
}

func pickOne[T any](m *mutator, list ...T) T { return list[m.IntN(len(list))] }

// odd is a JSON value that hardly fits anywhere.
func (m *mutator) odd() json.RawMessage {
	return json.RawMessage(pickOne(m, `null`, `true`, `false`, `0`, `-1`, `1.5`, `1e400`, `1e-400`, `9223372036854775808`, `""`, `"x"`, `"\u0000"`, `"\ud800"`, `[]`, `{}`,
		`["a",1]`, `{"a":"\u0000"}`, `"`+strings.Repeat("v", 600)+`"`, `"`+strings.Repeat("v", 66000)+`"`, `"á/%2F b"`))
}

// operation is right four times out of five, member by member.
func (m *mutator) operation() object {
	key := func() string { return pickOne(m, "a", "b", "c/d", "é", "n") }
	op := object{
		"op": pickOne(m, "get", "getMany", "getPrefix", "put", "putIfAbsent", "delete", "incr"), "ns": m.ns, "key": key(),
	}
	switch op["op"] {
	case "getMany":
		op["keys"] = []string{key(), key()}
	case "getPrefix":
		op["prefix"], op["limit"] = key(), m.IntN(5)
	case "put", "putIfAbsent":
		op["value"], op["ttlSeconds"] = pickOne[any](m, 1, "x", nil, object{"a": []int{1}}), 60
	case "incr":
		op["key"], op["delta"], op["forever"] = "n", pickOne[any](m, 1, -1, 0.5), true
	}
	if m.IntN(4) == 0 {
		op["expect"] = m.IntN(3)
	}
	if m.IntN(6) == 0 {
		op["required"] = true
	}
	for m.IntN(5) == 0 {
		name := pickOne(m, "op", "ns", "key", "keys", "prefix", "after", "limit", "keysOnly", "value", "delta", "min", "max", "ttlSeconds", "forever", "expect", "required",
			"tenant", "_tenant", "tenantId", "other")
		if delete(op, name); m.IntN(4) > 0 {
			op[name] = m.odd()
		}
	}
	return op
}

func (m *mutator) request() (method, path string, body []byte) {
	if m.IntN(3) == 0 {
		return m.routed()
	}
	list := make([]object, 1+m.IntN(4))
	for i := range list {
		list[i] = m.operation()
	}
	text, err := json.Marshal(object{"operations": list})
	if m.IntN(2) == 0 {
		text, err = json.Marshal(list)
	}
	if err != nil {
		panic(err)
	}
	return http.MethodPost, kvPath, m.damage(text)
}

// routed is a request of one key.
func (m *mutator) routed() (method, path string, body []byte) {
	op := m.operation()
	for _, name := range []string{"op", "ns", "key"} {
		if m.IntN(10) > 0 {
			delete(op, name)
		}
	}
	method = pickOne(m, http.MethodGet, http.MethodPut, http.MethodDelete)
	path = kvPath + "/" + pickOne(m, m.ns, m.ns, m.ns, "Bad", "%20", strings.Repeat("n", 70)) + "/" +
		pickOne(m, "a", "c/d", "c%2Fd", "%C3%A9", "%00", "%FF", "a//", "%2F", strings.Repeat("k", 513), "..", "%252F")
	if m.IntN(10) == 0 {
		path += pickOne(m, "?", "?x", "?x=1", "?txn=%00")
	}
	if method == http.MethodGet {
		return method, path, nil
	}
	text, err := json.Marshal(op)
	if err != nil {
		panic(err)
	}
	return method, path, m.damage(text)
}

// damage breaks a text at times.
func (m *mutator) damage(text []byte) []byte {
	if m.IntN(8) > 0 {
		return text
	}
	i := m.IntN(len(text))
	switch m.IntN(3) {
	case 0:
		return text[:i]
	case 1:
		return slices.Insert(text, i, byte(m.IntN(256)))
	default:
		text[i] = byte(m.IntN(256))
		return text
	}
}
