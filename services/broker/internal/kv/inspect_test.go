package kv_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/kv"
)

func repeat(op string, n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(op+",", n), ",") + "]"
}

const aGet = `{"op":"get","ns":"n","key":"k"}`

func TestDemandOfOperations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ops  string
		want kv.Demand
	}{
		"nothing":           {`[]`, kv.Demand{}},
		"a get":             {`[` + aGet + `]`, kv.Demand{Ops: 1, Keys: 1, Reads: 1}},
		"a put":             {`[{"op":"put","ns":"n","key":"k","value":{"a": 1},"forever":true}]`, kv.Demand{Ops: 1, Keys: 1, Writes: 1, Rows: 1, Bytes: 8}},
		"escapes":           {`[{"\u006fp":"p\u0075t","value":null}]`, kv.Demand{Ops: 1, Keys: 1, Writes: 1, Rows: 1, Bytes: 4}},
		"putIfAbsent":       {`[{"op":"putIfAbsent","value":"abc"}]`, kv.Demand{Ops: 1, Keys: 1, Writes: 1, Rows: 1, Bytes: 5}},
		"incr":              {`[{"op":"incr","delta":-10}]`, kv.Demand{Ops: 1, Keys: 1, Writes: 1, Rows: 1, Bytes: 3}},
		"delete":            {`[{"op":"delete","value":"ignored"}]`, kv.Demand{Ops: 1, Keys: 1, Writes: 1}},
		"getMany":           {`[{"op":"getMany","keys":["a","b","a"]}]`, kv.Demand{Ops: 1, Keys: 3, Reads: 1}},
		"getMany without":   {`[{"op":"getMany","keys":7}]`, kv.Demand{Ops: 1, Reads: 1}},
		"a page":            {`[{"op":"getPrefix","prefix":"a"}]`, kv.Demand{Ops: 1, Keys: 100, Reads: 1}},
		"a short page":      {`[{"op":"getPrefix","prefix":"a","limit":7}]`, kv.Demand{Ops: 1, Keys: 7, Reads: 1}},
		"a page too long":   {`[{"op":"getPrefix","prefix":"a","limit":1e9}]`, kv.Demand{Ops: 1, Keys: 1000, Reads: 1}},
		"what is unknown":   {`[{"op":"fly"}, 7, null, {}]`, kv.Demand{Ops: 4, Keys: 4, Reads: 4}},
		"members of values": {`[{"op":"put","value":{"op":"get","op":"get"}}]`, kv.Demand{Ops: 1, Keys: 1, Writes: 1, Rows: 1, Bytes: 23}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := kv.Inspect(json.RawMessage(tc.ops), kv.DefaultLimits(), false)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestLimitsOfACallOnBothSides(t *testing.T) {
	t.Parallel()
	put := func(value int) string {
		return fmt.Sprintf(`[{"op":"put","value":"%s"}]`, strings.Repeat("v", value-2))
	}
	get := func(key string) string { return fmt.Sprintf(`[{"op":"get","ns":"n","key":"%s"}]`, key) }
	many := func(n int) string { return `[{"op":"getMany","keys":` + repeat(`"k"`, n) + `}]` }
	prefix := func(n int) string { return `[{"op":"getPrefix","prefix":"` + strings.Repeat("p", n) + `"}]` }
	page := `{"op":"getPrefix","prefix":"p","limit":256}`
	for name, tc := range map[string]struct {
		good, bad     string
		inTransaction bool
		status        int
		reason        string
	}{
		"operations":                  {repeat(aGet, 256), repeat(aGet, 257), false, 400, "kv_too_many_ops"},
		"operations in a transaction": {repeat(aGet, 64), repeat(aGet, 65), true, 400, "kv_too_many_ops"},
		"keys":                        {many(1024), many(1025), false, 400, "kv_too_many_keys"},
		"keys of pages":               {repeat(page, 4), repeat(page, 5), false, 400, "kv_too_many_keys"},
		"keys in a transaction":       {many(256), many(257), true, 400, "kv_too_many_keys"},
		"a value":                     {put(65536), put(65537), false, 413, "kv_value_too_large"},
		"a key":                       {get(strings.Repeat("k", 512)), get(strings.Repeat("k", 513)), false, 413, "kv_key_too_large"},
		"a key with escapes":          {get(strings.Repeat(`\u006b`, 512)), get(strings.Repeat(`\u006b`, 513)), false, 413, "kv_key_too_large"},
		"a key counts bytes":          {get(strings.Repeat("é", 256)), get(strings.Repeat("é", 257)), false, 413, "kv_key_too_large"},
		"a key of many":               {`[{"op":"getMany","keys":["a"]}]`, `[{"op":"getMany","keys":["a","` + strings.Repeat("k", 513) + `"]}]`, false, 413, "kv_key_too_large"},
		"a prefix":                    {prefix(512), prefix(513), false, 413, "kv_key_too_large"},
		"a member given twice":        {`[{"op":"get","x":1,"x":2}]`, `[{"op":"get","\u006fp":"put"}]`, false, 400, "kv_bad_request"},
		"what is no array":            {`[]`, `{}`, false, 400, "kv_bad_body"},
		"what is no JSON":             {`[1]`, `[1`, false, 400, "kv_bad_body"},
		"what is no key":              {`[{"op":"get","key":7}]`, `[{"op":"get","key":}]`, false, 400, "kv_bad_body"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := kv.Inspect(json.RawMessage(tc.good), kv.DefaultLimits(), tc.inTransaction)
			require.NoError(t, err)
			_, err = kv.Inspect(json.RawMessage(tc.bad), kv.DefaultLimits(), tc.inTransaction)
			var r *wire.Refusal
			require.ErrorAs(t, err, &r)
			require.Equal(t, tc.status, r.Status)
			require.Equal(t, tc.reason, r.Reason, r.Detail)
			code := "kv_bad_request"
			if tc.status == http.StatusRequestEntityTooLarge {
				code = "payload_too_large"
			}
			require.Equal(t, code, r.Code)
		})
	}
}
