package wire_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestParseChanged(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 6, 7, 8, 9, 123456000, time.UTC)
	after, none := "n.70", "\uFFFD"
	for body, want := range map[string][]wire.ChangedEntry{
		`{"entries":[]}`: {},
		`{}`:             {},
		`{"entries":[{"queue":"a"},{"queue":"b","since":null,"after":null,"limit":null}]}`: {
			{Queue: "a", Limit: 1000}, {Queue: "b", Limit: 1000},
		},
		`{"entries":[{"queue":"a","since":"2026-05-06T09:08:09.123456+02:00","after":"n.70","limit":7,"later":1}]}`: {
			{Queue: "a", Since: &at, After: &after, Limit: 7},
		},
		`{"entries":[{"queue":"a","limit":0},{"queue":"b","limit":-3},{"queue":"c","limit":1001},{"queue":"d","limit":1e300}]}`: {
			{Queue: "a", Limit: 1}, {Queue: "b", Limit: 1}, {Queue: "c", Limit: 1000}, {Queue: "d", Limit: 1000},
		},
		`{"entries":[{"queue":"a","after":"\u0000"}]}`: {{Queue: "a", After: &none, Limit: 1000}},
	} {
		got, err := wire.ParseChanged([]byte(body))
		require.NoError(t, err, body)
		for i := range got {
			if got[i].Since != nil {
				utc := got[i].Since.UTC()
				got[i].Since = &utc
			}
		}
		require.Equal(t, want, got, body)
	}
}

func TestParseChangedSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	many := func(n int) string {
		return `{"entries":[` + strings.TrimSuffix(strings.Repeat(`{"queue":"q"},`, n), ",") + `]}`
	}
	_, err := wire.ParseChanged([]byte(many(wire.ChangedEntriesMax)))
	require.NoError(t, err)
	for body, text := range map[string]string{
		many(wire.ChangedEntriesMax + 1):                                          "bad body: entries: at most 64 are allowed",
		`{"entries":[{"queue":"a"},{"limit":1}]}`:                                 "bad body: entries[1].queue: a name is needed",
		`{"entries":[{"queue":""}]}`:                                              "bad body: entries[0].queue: a name is needed",
		`{"entries":[{"queue":"a","since":"yesterday"}]}`:                         `bad body: entries[0].since: "yesterday" is no RFC 3339 instant`,
		`{"entries":[{"queue":"a","since":"2026-05-06"}]}`:                        `bad body: entries[0].since: "2026-05-06" is no RFC 3339 instant`,
		`{"entries":[{"queue":` + strconv.Quote(strings.Repeat("x", 256)) + `}]}`: "bad body: entries[0].queue: longer than 255 characters",
		`{"entries":{}}`:                          "bad body: entries: an array is allowed here, got an object",
		`{"entries":[{"queue":"a"},7]}`:           "bad body: entries[1]: an object is allowed here, got a number",
		`{"entries":[{"queue":5}]}`:               "bad body: entries[0].queue: a string is allowed here, got a number",
		`{"entries":[{"queue":"a","since":5}]}`:   "bad body: entries[0].since: a string is allowed here, got a number",
		`{"entries":[{"queue":"a","after":[]}]}`:  "bad body: entries[0].after: a string is allowed here, got an array",
		`{"entries":[{"queue":"a","limit":"7"}]}`: "bad body: entries[0].limit: a whole number is allowed here, got a string",
		`{"entries":[{"queue":"a","limit":2.5}]}`: "bad body: entries[0].limit: a whole number is allowed here, got 2.5",
		`{"entries":[{"queue":"a","queue":"b"}]}`: `bad body: entries[0]: key "queue" is given twice`,
		`[]`:               "bad body: an object is allowed here, got an array",
		``:                 "bad body: empty",
		`{"entries":[]} x`: "bad body: 1 bytes follow the JSON object",
	} {
		_, err := wire.ParseChanged([]byte(body))
		require.ErrorContains(t, err, text, body)
	}
}
