package wire_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

func TestPushItemsAreReadAsSent(t *testing.T) {
	t.Parallel()
	body := []byte(` {"other":[1,{"a":2}],"items":[
		{"queue":"q","payload":  {"a" : 1, "a":2}  ,"traceId":"junk","producerSub":5},
		{"partition":"p","transactionId":"t\u003c1","queue":"q","payload":null},
		{"partition":null,"transactionId":"","queue":"\u0071","payload":"\ud800","payload2":1},
		{"queue":"q","payload":1e999999}]} `)
	items, err := wire.ParsePush(body)
	require.NoError(t, err)
	require.Equal(t, []wire.PushItem{
		{Queue: "q", Partition: "Default", Payload: []byte(`{"a" : 1, "a":2}`)},
		{Queue: "q", Partition: "p", TransactionID: "t<1", Payload: []byte("null")},
		{Queue: "q", Partition: "Default", Payload: []byte(`"\ud800"`)},
		{Queue: "q", Partition: "Default", Payload: []byte("1e999999")},
	}, items)

	at := bytes.Index(body, []byte(`{"a" `))
	require.Same(t, &body[at], &items[0].Payload[0], "payloads alias the body")
}

func TestAnEmptyPushIsLegal(t *testing.T) {
	t.Parallel()
	items, err := wire.ParsePush([]byte(`{"items":[]}`))
	require.NoError(t, err)
	require.Empty(t, items)
	require.Equal(t, "[]", string(wire.AppendPushResults(nil, nil)))
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }

func item(fields string) string { return `{"items":[{"queue":"q","payload":1},{` + fields + `}]}` }

// badBodies maps what is wrong to a body of a push.
func badBodies() map[string]string {
	return map[string]string{
		"empty":                        ``,
		"blank":                        `  `,
		"null":                         `null`,
		"array":                        `[]`,
		"string":                       `"x"`,
		"number":                       `1`,
		"cut short":                    `{"items":[`,
		"cut in a string":              `{"items":[{"queue":"q`,
		"trailing value":               `{"items":[]} {}`,
		"trailing bytes":               `{"items":[]}x`,
		"trailing comma":               `{"items":[],}`,
		"byte order mark":              "\ufeff" + `{"items":[]}`,
		"invalid UTF-8":                "{\"items\":[{\"queue\":\"q\",\"payload\":\"\xff\"}]}",
		"single quotes":                `{'items':[]}`,
		"no items":                     `{}`,
		"items null":                   `{"items":null}`,
		"items object":                 `{"items":{}}`,
		"items twice":                  `{"items":[],"items":[]}`,
		"item null":                    `{"items":[null]}`,
		"item number":                  `{"items":[1]}`,
		"item array":                   `{"items":[[]]}`,
		"queue missing":                item(`"payload":1`),
		"queue null":                   item(`"queue":null,"payload":1`),
		"queue empty":                  item(`"queue":"","payload":1`),
		"queue number":                 item(`"queue":5,"payload":1`),
		"queue object":                 item(`"queue":{},"payload":1`),
		"queue twice":                  item(`"queue":"q","queue":"q","payload":1`),
		"queue too long":               item(`"queue":"` + strings.Repeat("é", 256) + `","payload":1`),
		"queue with NUL":               item(`"queue":"a\u0000b","payload":1`),
		"queue with newline":           item(`"queue":"a\nb","payload":1`),
		"queue with DEL":               item(`"queue":"a\u007fb","payload":1`),
		"queue with C1":                item(`"queue":"a\u0085b","payload":1`),
		"queue with lone surrogate":    item(`"queue":"a\ud800b","payload":1`),
		"partition number":             item(`"queue":"q","partition":1,"payload":1`),
		"partition too long":           item(`"queue":"q","partition":"` + strings.Repeat("p", 1025) + `","payload":1`),
		"partition with tab":           item(`"queue":"q","partition":"a\tb","payload":1`),
		"partition twice":              item(`"queue":"q","partition":"a","partition":"b","payload":1`),
		"transaction id number":        item(`"queue":"q","transactionId":7,"payload":1`),
		"transaction id bool":          item(`"queue":"q","transactionId":true,"payload":1`),
		"transaction id too long":      item(`"queue":"q","transactionId":"` + strings.Repeat("t", 1025) + `","payload":1`),
		"transaction id with NUL":      item(`"queue":"q","transactionId":"\u0000","payload":1`),
		"transaction id twice":         item(`"queue":"q","transactionId":"a","transactionId":"a","payload":1`),
		"payload missing":              item(`"queue":"q"`),
		"data is no payload":           item(`"queue":"q","data":1`),
		"payload twice":                item(`"queue":"q","payload":1,"payload":1`),
		"payload cut":                  item(`"queue":"q","payload":{"a":}`),
		"payload unquoted":             item(`"queue":"q","payload":abc`),
		"payload leading zero":         item(`"queue":"q","payload":01`),
		"payload plus":                 item(`"queue":"q","payload":+1`),
		"payload NaN":                  item(`"queue":"q","payload":NaN`),
		"payload bad escape":           item(`"queue":"q","payload":"\x"`),
		"payload raw control":          item("\"queue\":\"q\",\"payload\":\"a\x01b\""),
		"payload too deep":             item(`"queue":"q","payload":` + nested(513)),
		"unknown member too deep":      item(`"queue":"q","payload":1,"x":` + nested(513)),
		"unknown member not JSON":      item(`"queue":"q","payload":1,"x":tru`),
		"missing colon":                item(`"queue" "q","payload":1`),
		"missing comma":                item(`"queue":"q" "payload":1`),
		"unquoted key":                 item(`queue:"q","payload":1`),
		"comment":                      `{"items":[] /* none */}`,
		"mismatched brackets":          `{"items":[}`,
		"two objects without a comma":  `{"items":[{"queue":"q","payload":1}{"queue":"q","payload":1}]}`,
		"trailing comma after an item": `{"items":[{"queue":"q","payload":1},]}`,
	}
}

func TestBadPushBodiesAreRefused(t *testing.T) {
	t.Parallel()
	require.GreaterOrEqual(t, len(badBodies()), 60)
	for name, body := range badBodies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := wire.ParsePush([]byte(body))
			var bad *wire.Error
			require.ErrorAs(t, err, &bad)
			require.Equal(t, 400, bad.Status)
			require.True(t, strings.HasPrefix(bad.Text, "bad body: "), bad.Text)
		})
	}
}

func TestErrorsNamePlaceFaultAndRule(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		item(`"queue":"q","partition":7,"payload":1`): "items[1].partition: a string is allowed here, got a number",
		item(`"queue":"q"`):                           "items[1]: missing field `payload`: any JSON value is allowed, null included",
		item(`"payload":1`):                           "items[1]: missing field `queue`: a name of 1 to 255 characters is needed",
		item(`"queue":"q","queue":"q","payload":1`):   `items[1]: key "queue" is given twice`,
		item(`"queue":"q","payload":` + nested(513)):  "items[1].payload: nested deeper than 512 levels",
		`{"items":[}`:                                 `invalid character '}' at start of value within "/items/0" after offset 10`,
		`{"items":[{"queue":`:                         `unexpected EOF within "/items/0/queue" after offset 19`,
		`{"items":[]} x`:                              "1 bytes follow the JSON object",
		`{}`:                                          "missing field `items`: an array of messages is needed, which may be empty",
		``:                                            "empty; a JSON object is needed",
		"\ufeff{}":                                    "begins with a byte order mark; a JSON object is allowed",
		"{\xff}":                                      "not valid UTF-8",
	} {
		_, err := wire.ParsePush([]byte(body))
		require.EqualError(t, err, "bad body: "+want)
	}
}

// A name with escapes must not be taken for an earlier one that is spelt the same
// with a real backslash.
func TestEscapesAreReadBeforeNamesAreShared(t *testing.T) {
	t.Parallel()
	items, err := wire.ParsePush([]byte(`{"items":[
		{"queue":"a\\u0062","partition":"p\\u0071","payload":1},
		{"queue":"a\u0062","partition":"p\u0071","payload":1},
		{"queue":"ab","\u0070artition":"pq","payload":1}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{`a\u0062`, "ab", "ab"}, []string{items[0].Queue, items[1].Queue, items[2].Queue})
	require.Equal(t, []string{`p\u0071`, "pq", "pq"}, []string{items[0].Partition, items[1].Partition, items[2].Partition})
	_, err = wire.ParsePush([]byte(`{"items":[{"queue":"a\\n","payload":1},{"queue":"a\n","payload":1}]}`))
	require.ErrorContains(t, err, "items[1].queue: holds a control character")
}

// The bound is the same for every array; riders are the cheapest to read.
func TestArraysAreBounded(t *testing.T) {
	t.Parallel()
	riders := func(n int) []byte {
		return []byte(`{"operations":[],"kv":[` + strings.Repeat("0,", n-1) + `0]}`)
	}
	_, err := wire.ParseTransaction(riders(wire.MaxElements))
	require.NoError(t, err)
	_, err = wire.ParseTransaction(riders(wire.MaxElements + 1))
	require.EqualError(t, err, "bad body: kv[999999]: more than 1000000 elements in one request")
}

func TestLimitsHoldOnBothSides(t *testing.T) {
	t.Parallel()
	for name, fields := range map[string]string{
		"queue of 255 characters":   `"queue":"` + strings.Repeat("é", 255) + `","payload":1`,
		"partition of 1024 bytes":   `"queue":"q","partition":"` + strings.Repeat("p", 1024) + `","payload":1`,
		"transaction id 1024 bytes": `"queue":"q","transactionId":"` + strings.Repeat("t", 1024) + `","payload":1`,
		"depth of 512":              `"queue":"q","payload":` + nested(512),
		"many flat brackets":        `"queue":"q","payload":[` + strings.Repeat("[],", 2000) + `"[[["]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := wire.ParsePush([]byte(item(fields)))
			require.NoError(t, err)
		})
	}
}

func TestPushResultsAreRendered(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0199aa10-1111-7abc-8def-000000000001")
	got := wire.AppendPushResults(nil, []wire.PushResult{
		{Index: 0, MessageID: id, TransactionID: `in"v`, QueueName: "b.i", Status: wire.StatusQueued},
		{Index: 1, QueueName: "q", Status: wire.StatusFailed, Error: "no"},
	})
	require.Equal(t, `[{"index":0,"message_id":"0199aa10-1111-7abc-8def-000000000001","transaction_id":"in\"v","queueName":"b.i","status":"queued"},`+
		`{"index":1,"message_id":"00000000-0000-0000-0000-000000000000","transaction_id":"","queueName":"q","status":"failed","error":"no"}]`, string(got))
}
