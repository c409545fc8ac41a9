package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestBodyOfOneKeyIsPassedOn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body, put, remove string
	}{
		{`{}`, ``, ``},
		{` {"value": {"a" : [1, 2]} , "forever":true} `, `,"value":{"a" : [1, 2]},"forever":true`, ``},
		{`{"expect":7,"ttlSeconds":1.5,"required":false,"other":{"op":1},"value":null}`,
			`,"expect":7,"ttlSeconds":1.5,"required":false,"value":null`, `,"expect":7,"required":false`},
		{`{"v\u0061lue":1}`, `,"value":1`, ``},
	} {
		put, err := wire.ParseKVPut([]byte(tc.body))
		require.NoError(t, err, tc.body)
		require.Equal(t, tc.put, string(put))
		remove, err := wire.ParseKVDelete([]byte(tc.body))
		require.NoError(t, err, tc.body)
		require.Equal(t, tc.remove, string(remove))
		ops := wire.AppendKVOperation(nil, "put", "n", `a"/é`, put)
		require.JSONEq(t, `[{"op":"put","ns":"n","key":"a\"/é"`+tc.put+`}]`, string(ops))
	}
}

func TestBodyOfOneKeyThatIsRefused(t *testing.T) {
	t.Parallel()
	for body, text := range map[string]string{
		`7`: "bad body: ", `[]`: "bad body: ", `{"value":}`: "bad body: ", `{} {}`: "bad body: ", "\xff": "not valid UTF-8",
		`{"expect":1,"expect":2}`: `key "expect" is given twice`,
		`{"op":"put"}`:            "field `op` is in the path", `{"ns":1}`: "field `ns`", `{"namespace":null}`: "field `namespace`", `{"\u006bey":1}`: "field `key`",
		`{"value":` + strings.Repeat("[", 513) + strings.Repeat("]", 513) + `}`: "nested deeper than 512 levels",
	} {
		_, err := wire.ParseKVPut([]byte(body))
		require.ErrorContains(t, err, text, body)
		if !strings.Contains(body, `"value"`) {
			_, err = wire.ParseKVDelete([]byte(body))
			require.ErrorContains(t, err, text, body)
		}
	}
	for _, nothing := range []string{``, `null`, ` null `} {
		members, err := wire.ParseKVDelete([]byte(nothing))
		require.NoError(t, err)
		require.Empty(t, members)
		_, err = wire.ParseKVPut([]byte(nothing))
		require.Error(t, err)
	}
}

func TestListingOfKeys(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wire.KVPage{
		`{}`: {},
		`{"namespace":"n","prefix":"p","after":"\u0061","limit":7,"keysOnly":true,"includeExpired":true,"x":1}`: {
			Namespace: "n", Prefix: "p", After: "a", Limit: 7, KeysOnly: true, IncludeExpired: true,
		},
		`{"namespace":null,"prefix":null,"after":null,"limit":null,"keysOnly":null,"includeExpired":null}`: {},
		`{"limit":0}`: {Limit: 1}, `{"limit":-1e99}`: {Limit: 1}, `{"limit":1000}`: {Limit: 1000}, `{"limit":1001}`: {Limit: 1000},
		`{"limit":1e999}`: {Limit: 1000}, `{"limit":2.0}`: {Limit: 2},
	} {
		got, err := wire.ParseKVPage([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, got, body)
	}
	for body, text := range map[string]string{
		`{"limit":"7"}`: "limit: a whole number is allowed here, got a string", `{"limit":1.5}`: "got 1.5",
		`{"keysOnly":1}`: "keysOnly: a boolean is allowed here", `{"prefix":"\u0000"}`: "prefix: holds a zero character",
		`{"after":"\ud800"}`: "after: holds an unpaired surrogate", `{"after":[]}`: "after: a string is allowed",
		`{"limit":1,"limit":1}`: "given twice", `[]`: "an object is allowed", `{} 1`: "bytes follow", ``: "empty",
	} {
		_, err := wire.ParseKVPage([]byte(body))
		require.ErrorContains(t, err, text, body)
	}
}

func TestAnswersOnKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, `{"results":[1, 2]}`, string(wire.AppendResults(nil, []byte(`[1, 2]`))))
	require.Equal(t, `{"ok":false,"reason":"kv_precondition"}`, string(wire.AppendKVLost(nil, wire.KVLost{})))
	require.Equal(t, `{"ok":false,"reason":"kv_precondition","failedIndex":3,"kvReason":"absent","version":0,"value":null}`,
		string(wire.AppendKVLost(nil, wire.KVLost{Known: true, Index: 3, Reason: "absent"})))
	require.Equal(t, `{"ok":false,"reason":"kv_precondition","failedIndex":0,"kvReason":"version","version":9,"value":{"a": 1}}`,
		string(wire.AppendKVLost(nil, wire.KVLost{Known: true, Reason: "version", Version: 9, Value: json.RawMessage(`{"a": 1}`)})))
}

func TestChangesOfSwitches(t *testing.T) {
	t.Parallel()
	on, off := true, false
	for body, want := range map[string]wire.SwitchChange{
		`{"kv":true}`:                 {KV: &on},
		`{"timersSchedule":false}`:    {TimersSchedule: &off},
		`{"x":7,"timersFire":false} `: {TimersFire: &off},
		`{"kv":false,"timersSchedule":true,"timersFire":true}`: {KV: &off, TimersSchedule: &on, TimersFire: &on},
	} {
		got, err := wire.ParseSwitchChange([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, got, body)
	}
	for body, text := range map[string]string{
		`{}`: "none of kv, timersSchedule and timersFire is given", `{"kv":1}`: "kv: a boolean is allowed here, got a number",
		`{"kv":null}`: "got null", `{"kv":true,"kv":true}`: "given twice", `{"kv":true}}`: "bytes follow", `[]`: "an object is allowed", ``: "empty",
	} {
		_, err := wire.ParseSwitchChange([]byte(body))
		require.ErrorContains(t, err, text, body)
	}
}
