package httpapi_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/broker/internal/quota"
)

// FuzzBatch sends anything to the batch of keys, with a database behind it: only
// answers, and refusals for what was asked, come back.
func FuzzBatch(f *testing.F) {
	for _, seed := range []string{
		`[]`, `{"operations":[]}`, `[7,null,"x",[],{}]`,
		`[{"op":"get","ns":"n","key":"k"}]`,
		`[{"op":"getMany","ns":"n","keys":["a","b",7]}]`,
		`[{"op":"getPrefix","ns":"n","prefix":"p","after":"a","limit":1e400,"keysOnly":true}]`,
		`[{"op":"put","ns":"n","key":"k","value":{"a":[1,"\u0000"]},"ttlSeconds":1e9}]`,
		`[{"op":"put","ns":"n","key":"k","value":"\ud800","forever":true}]`,
		`[{"op":"putIfAbsent","ns":"n","key":"k","value":null,"forever":true,"required":true,"expect":0}]`,
		`[{"op":"delete","ns":"n","key":"k","expect":1.5}]`,
		`[{"op":"incr","ns":"n","key":"c","delta":1e999,"min":-1e99999,"max":3,"forever":true},{"op":"incr","ns":"n","key":"c","delta":1,"forever":true}]`,
		`{"operations":[{"o\u0070":"get","op":"put"}]}`,
		`[{"op":"put","ns":"n","key":"k","value":1e131071,"forever":true}]`,
	} {
		f.Add([]byte(seed))
	}
	b, _ := setupKeys(f, quota.Config{})
	codes := map[int][]string{
		http.StatusBadRequest:            {"kv_bad_request"},
		http.StatusRequestEntityTooLarge: {"payload_too_large"},
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.addr+batch, bytes.NewReader(body))
		require.NoError(t, err)
		res, err := b.client.Do(req)
		require.NoError(t, err)
		got, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.True(t, json.Valid(got), "%s", got)
		if res.StatusCode == http.StatusOK {
			return
		}
		var refusal struct{ Error, Reason string }
		require.NoError(t, json.Unmarshal(got, &refusal))
		require.True(t, slices.Contains(codes[res.StatusCode], refusal.Error), "%d %s", res.StatusCode, got)
		require.NotEmpty(t, refusal.Reason)
	})
}
