package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

// requirePlainIsEqual holds the short way to what the parser finds.
func requirePlainIsEqual(t *testing.T, body []byte, items []wire.PushItem) {
	t.Helper()
	want, err := wire.ParseAnyPush(body)
	require.NoError(t, err, "%s", body)
	if len(want) == 0 {
		require.Empty(t, items)
		return
	}
	require.Equal(t, want, items, "%s", body)
}

func TestThePlainWayFindsWhatTheParserFinds(t *testing.T) {
	t.Parallel()
	for body, plain := range map[string]bool{
		`{"items":[]}`: true,
		` { "items" : [ { "queue" : "q" , "payload" : 1 } ] } `:                                                 true,
		`{"items":[{"queue":"q","partition":"p","transactionId":"t","payload":{"a":[1,-2.5e+7,"x\"\u00e9"]}}]}`: true,
		`{"items":[{"queue":"é","payload":"é"},{"queue":"é","payload":[]},{"payload":{},"queue":"r"}]}`:         true,
		`{"items":[{"queue":"q","payload":"\ud800"},{"queue":"q","payload":"\\\/\b\f\n\r\t"}]}`:                 true,
		`{"items":[{"queue":"q","payload":true,"more":{"a":null}},{"queue":"q","payload":false}]}`:              true,
		`{"items":[{"queue":"q","payload":` + nested(60) + `}]}`:                                                true,
		`{"items":[{"queue":"q","payload":` + nested(70) + `}]}`:                                                false,
		`{"items":[{"queue":"\u0071","payload":1}]}`:                                                            false,
		`{"items":[{"queue":"q","partition":null,"payload":1}]}`:                                                false,
		`{"items":[{"queue":"q","partition":"","payload":1}]}`:                                                  false,
		`{"items":[{"queue":"q","pay\u006coad":1}]}`:                                                            false,
		`{"a":1,"items":[{"queue":"q","payload":1}]}`:                                                           false,
		`{"items":[{"queue":"q","payload":1}],"a":1}`:                                                           false,
	} {
		_, ok := wire.ParsePlainPush([]byte(body))
		require.Equal(t, plain && !strings.Contains(body, `pay\u`), ok, body)
		items, err := wire.ParsePush([]byte(body))
		if err == nil {
			requirePlainIsEqual(t, []byte(body), items)
		}
	}
	for name, body := range badBodies() {
		_, ok := wire.ParsePlainPush([]byte(body))
		require.False(t, ok, name)
	}
}

// Every byte in every place of a body: the short way never takes what the parser
// refuses, nor otherwise.
func TestThePlainWayTakesNothingThatTheParserRefuses(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"items":[{"queue":"q","partition":"pp","transactionId":"t","payload":{"a":[1,-0.5e7,"x\"é"]}}, {"queue":"q","payload":"0123456789"}]}`,
		`{"items":[{"queue":"q","payload":[true,null,{}]}]}`,
	} {
		taken := 0
		for at := range len(body) {
			for c := range 256 {
				changed := []byte(body)
				changed[at] = byte(c)
				if items, ok := wire.ParsePlainPush(changed); ok {
					taken++
					requirePlainIsEqual(t, changed, items)
				}
			}
			for _, changed := range []string{body[:at], body[:at] + body[at+1:], body[:at] + body[at:at+1] + body[at:]} {
				if items, ok := wire.ParsePlainPush([]byte(changed)); ok {
					requirePlainIsEqual(t, []byte(changed), items)
				}
			}
		}
		require.Greater(t, taken, len(body))
	}
}
