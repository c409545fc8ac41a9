package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestSeekBodies(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]wire.Seek{
		``:                                     {Empty: true},
		" \n":                                  {Empty: true},
		`{}`:                                   {Empty: true},
		`{"other":{"toEnd":true}}`:             {Empty: true},
		`{"toEnd":true}`:                       {ToEnd: true},
		`{"toEnd":false}`:                      {},
		`{"toEnd":null,"timestamp":null}`:      {},
		`{"timestamp":"2026-01-01T00:00:00Z"}`: {Timestamp: "2026-01-01T00:00:00Z"},
		`{"timestamp":"x","toEnd":true}`:       {ToEnd: true, Timestamp: "x"},
	} {
		got, err := wire.ParseSeek([]byte(body))
		require.NoError(t, err, body)
		require.Equal(t, want, got, body)
		err = got.Check()
		require.Equal(t, want.ToEnd || want.Timestamp != "", err == nil, body)
	}
	require.EqualError(t, wire.Seek{}.Check(), "Must specify toEnd=true or a timestamp")
	for body, text := range map[string]string{
		`null`:                        "bad body: an object is allowed here, got null",
		`{"toEnd":1}`:                 "bad body: toEnd: a boolean is allowed here, got a number",
		`{"toEnd":true,"toEnd":true}`: `bad body: key "toEnd" is given twice`,
		`{"timestamp":{}}`:            "bad body: timestamp: a string is allowed here, got an object",
		`{} {}`:                       "bad body: 2 bytes follow the JSON object",
	} {
		_, err := wire.ParseSeek([]byte(body))
		require.EqualError(t, err, text, body)
	}
}

func TestSubscriptionBodies(t *testing.T) {
	t.Parallel()
	at, err := wire.ParseSubscription([]byte(`{"x":[],"subscriptionTimestamp":"2026-01-01"}`))
	require.NoError(t, err)
	require.Equal(t, "2026-01-01", at)
	for body, text := range map[string]string{
		`{}`:                             "bad body: missing field `subscriptionTimestamp`: an RFC 3339 instant is needed",
		`{"subscriptionTimestamp":null}`: "bad body: missing field `subscriptionTimestamp`: an RFC 3339 instant is needed",
		`{"subscriptionTimestamp":true}`: "bad body: subscriptionTimestamp: a string is allowed here, got a boolean",
		`{"subscriptionTimestamp":"a"}]`: "bad body: 1 bytes follow the JSON object",
		``:                               "bad body: empty; a JSON object is needed",
	} {
		_, err := wire.ParseSubscription([]byte(body))
		require.EqualError(t, err, text, body)
	}
}
