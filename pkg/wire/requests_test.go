package wire_test

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/wire"
)

const traceText = "0199aa10-1111-4abc-8def-000000000001"

func TestAckStatusesAreNormalised(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		`null`: "completed", `"completed"`: "completed", `"success"`: "completed", `"acked"`: "completed", `"ok"`: "completed",
		`"retry"`: "retry", `"dlq"`: "dlq", `"failed"`: "failed",
		`""`: "failed", `"Completed"`: "failed", `"nack"`: "failed", `"DLQ"`: "failed",
	} {
		req, err := wire.ParseAck([]byte(`{"transactionId":"t","status":` + sent + `}`))
		require.NoError(t, err)
		require.Equal(t, want, req.Items[0].Status, sent)
	}
}

func TestAckDefaults(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, `{"transactionId":null,"partitionId":null,"status":null,"consumerGroup":null,"leaseId":null,"error":null,"x":[]}`,
	} {
		req, err := wire.ParseAck([]byte(body))
		require.NoError(t, err)
		require.Equal(t, []wire.AckItem{{Status: "completed", Group: "__QUEUE_MODE__"}}, req.Items)
	}
	req, err := wire.ParseAck([]byte(`{"transactionId":"t","partitionId":"p","leaseId":"l","error":"a\u0000b\ud800","consumerGroup":"g","status":"failed"}`))
	require.NoError(t, err)
	require.Equal(t, wire.AckItem{
		TransactionID: "t", PartitionID: "p", LeaseID: "l", Error: "a\uFFFDb\uFFFD", Group: "g", Status: "failed",
	}, req.Items[0])
}

// What an item shares with the one before must not stick to it.
func TestAcksOfABatchAreIndependent(t *testing.T) {
	t.Parallel()
	req, err := wire.ParseAckBatch([]byte(`{"acknowledgments":[
		{"transactionId":"a","partitionId":"p\\t","leaseId":"l\\u0061","status":"failed","error":"e"},
		{"transactionId":"b","partitionId":"p\t","leaseId":"l\u0061"},
		{"transactionId":"c","partitionId":"p\t","leaseId":"la","status":"dlq","error":"e"},
		{}]}`))
	require.NoError(t, err)
	require.Equal(t, []wire.AckItem{
		{TransactionID: "a", PartitionID: `p\t`, LeaseID: `l\u0061`, Status: "failed", Error: "e", Group: "__QUEUE_MODE__"},
		{TransactionID: "b", PartitionID: "p\t", LeaseID: "la", Status: "completed", Group: "__QUEUE_MODE__"},
		{TransactionID: "c", PartitionID: "p\t", LeaseID: "la", Status: "dlq", Error: "e", Group: "__QUEUE_MODE__"},
		{Status: "completed", Group: "__QUEUE_MODE__"},
	}, req.Items)
}

func TestABatchHasOneGroup(t *testing.T) {
	t.Parallel()
	req, err := wire.ParseAckBatch([]byte(`{"acknowledgments":[{"transactionId":"a","consumerGroup":"own"},{"transactionId":"b"}],"consumerGroup":"g"}`))
	require.NoError(t, err)
	require.Len(t, req.Items, 2)
	require.Equal(t, "g", req.Items[0].Group)
	require.Equal(t, "g", req.Items[1].Group)

	req, err = wire.ParseAckBatch([]byte(`{"acknowledgments":[]}`))
	require.NoError(t, err)
	require.Empty(t, req.Items)
}

func TestBadAcksAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		``, `[]`, `null`, `{"transactionId":5}`, `{"partitionId":[]}`, `{"status":1}`, `{"leaseId":{}}`, `{"error":false}`, `{"consumerGroup":1}`,
		`{"consumerGroup":"a\u0000"}`, `{"consumerGroup":"` + strings.Repeat("g", 1025) + `"}`, `{"transactionId":"a","transactionId":"b"}`, `{} x`,
	} {
		_, err := wire.ParseAck([]byte(body))
		requireBad(t, err, body)
	}
	for _, body := range []string{
		`{}`, `{"acknowledgments":null}`, `{"acknowledgments":{}}`, `{"acknowledgments":[1]}`, `{"acknowledgments":[null]}`,
		`{"acknowledgments":[],"acknowledgments":[]}`, `{"acknowledgments":[{"status":7}]}`, `[]`,
	} {
		_, err := wire.ParseAckBatch([]byte(body))
		requireBad(t, err, body)
	}
}

func requireBad(t *testing.T, err error, body string) {
	t.Helper()
	var bad *wire.Error
	require.ErrorAs(t, err, &bad, body)
	require.Equal(t, 400, bad.Status, body)
}

func TestTransactionsAreFlattened(t *testing.T) {
	t.Parallel()
	req, err := wire.ParseTransaction([]byte(`{"requiredLeases":["l1",null,"l2"],"kv":[],"timers":null,"operations":[
		{"items":[{"queue":"q","payload":1,"traceId":"` + traceText + `"},{"queue":"q","partition":"p","data":{"a":1}}],"type":"push"},
		{"type":"push","queue":"r","transactionId":"t9"},
		{"type":"ack","transactionId":"t1","partitionId":"x","status":"retry","leaseId":"l","error":"e","consumerGroup":"g"},
		{"transactionId":"t2","type":"ack"},
		{"type":"push","items":[]}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"l1", "l2"}, req.RequiredLeases)
	require.False(t, req.HasRiders())
	require.Equal(t, []wire.TxOp{
		{Push: wire.PushItem{Queue: "q", Partition: "Default", Payload: []byte("1")}, TraceID: uuid.MustParse(traceText), HasTrace: true},
		{Push: wire.PushItem{Queue: "q", Partition: "p", Payload: []byte(`{"a":1}`)}},
		{Push: wire.PushItem{Queue: "r", Partition: "Default", TransactionID: "t9", Payload: []byte("{}")}},
		{Kind: wire.TxAck, Ack: wire.AckItem{
			TransactionID: "t1", PartitionID: "x", Status: "retry", LeaseID: "l", Error: "e", Group: "g",
		}},
		{Kind: wire.TxAck, Ack: wire.AckItem{TransactionID: "t2", Status: "completed", Group: "__QUEUE_MODE__"}},
	}, req.Ops)

}

func TestRidersAreTakenAsTheyStand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]wire.TxRequest{
		`{"operations":[],"kv":[{"op":"get"}]}`:                               {KV: json.RawMessage(`[{"op":"get"}]`)},
		`{"kv" : [ {"op":"get"} , 7 ] }`:                                      {KV: json.RawMessage(`[ {"op":"get"} , 7 ]`)},
		`{"timers":[["\u0000"],{"a":1,"a":2}],"kv":null}`:                     {Timers: json.RawMessage(`[["\u0000"],{"a":1,"a":2}]`)},
		`{"kv":[],"timers":[1e400],"requiredLeases":["l"]}`:                   {Timers: json.RawMessage(`[1e400]`), RequiredLeases: []string{"l"}},
		`{"\u006bv":["["],"operations":[{"type":"push","items":[]}]}`:         {KV: json.RawMessage(`["["]`)},
		`{"kv":[{"op":7,"value":"getPrefix"}],"timers":[{"op":"getPrefix"}]}`: {KV: json.RawMessage(`[{"op":7,"value":"getPrefix"}]`), Timers: json.RawMessage(`[{"op":"getPrefix"}]`)},
		`{"timers":[{}],"operations":[{"type":"ack"}],"kv":[{},{"x":[]}]}`:    {KV: json.RawMessage(`[{},{"x":[]}]`), Timers: json.RawMessage(`[{}]`), Ops: []wire.TxOp{{Kind: wire.TxAck, Ack: wire.AckItem{Status: "completed", Group: "__QUEUE_MODE__"}}}},
	} {
		body := []byte(text)
		req, err := wire.ParseTransaction(body)
		require.NoError(t, err, text)
		require.Equal(t, want, req, text)
		require.True(t, req.HasRiders())
		for _, rider := range [][]byte{req.KV, req.Timers} {
			if rider != nil {
				require.Same(t, &body[bytes.Index(body, rider)], &rider[0], "riders alias the body")
				require.Equal(t, len(rider), cap(rider))
			}
		}
	}
}

// An operation's type decides which of its members mean something.
func TestMembersOfTheOtherOperationAreUnknown(t *testing.T) {
	t.Parallel()
	req, err := wire.ParseTransaction([]byte(`{"operations" : [
		{"queue":5,"partition":[],"payload":1,"payload":2,"traceId":"junk","items":7,"type":"ack","transactionId":"t"} ,
		{"status":5,"error":{},"leaseId":[],"partitionId":1,"consumerGroup":false,"transactionId":"u","\u0074ype":"pu\u0073h","queue":"q","items":null,"data":[1]},
		{"items":[{"queue":"q","payload":` + nested(512) + `,"status":5}],"type":"push"}]}`))
	require.NoError(t, err)
	require.Equal(t, []wire.TxOp{
		{Kind: wire.TxAck, Ack: wire.AckItem{TransactionID: "t", Status: "completed", Group: "__QUEUE_MODE__"}},
		{Push: wire.PushItem{Queue: "q", Partition: "Default", TransactionID: "u", Payload: []byte("[1]")}},
		{Push: wire.PushItem{Queue: "q", Partition: "Default", Payload: []byte(nested(512))}},
	}, req.Ops)
}

func TestPayloadOfATransactionBeatsItsAlias(t *testing.T) {
	t.Parallel()
	body := []byte(`{"operations":[{"type":"push","queue":"q","data":1,"payload":{"k" : null}},{"type":"push","queue":"q","payload":null}]}`)
	req, err := wire.ParseTransaction(body)
	require.NoError(t, err)
	require.Equal(t, `{"k" : null}`, string(req.Ops[0].Push.Payload))
	require.Equal(t, `null`, string(req.Ops[1].Push.Payload))
	require.Same(t, &body[bytes.Index(body, []byte(`{"k"`))], &req.Ops[0].Push.Payload[0], "payloads alias the body")
}

func TestErrorsOfATransactionNameThePlace(t *testing.T) {
	t.Parallel()
	const start = `{"operations":[{"type":"ack"},`
	for body, want := range map[string]string{
		start + `{"type":"push","items":[{"queue":"q"},{"queue":5}]}]}`:       "operations[1].items[1].queue: a string is allowed here, got a number",
		start + `{"type":"push","queue":"q","traceId":"no"}]}`:                `operations[1].traceId: "no" is not a UUID`,
		start + `{"type":"push","queue":"q","payload":` + nested(513) + `}]}`: "operations[1].payload: nested deeper than 512 levels",
		start + `{"type":"push","items":[],"items":[]}]}`:                     `operations[1]: key "items" is given twice`,
		start + `{"type":"ack","status":"ok","status":null}]}`:                `operations[1]: key "status" is given twice`,
		start + `7]}`:         "operations[1]: an object is allowed here, got a number",
		start + `{"type":}]}`: `invalid character '}' at start of value within "/operations/1/type" after offset 38`,
		start + `{"type":"ack"}],"requiredLeases":["a",{}]}`:     "requiredLeases[1]: a string is allowed here, got an object",
		`{"operations":[],"kv":[]}`:                              "operations: empty; at least one push or ack operation is needed, or one of kv or timers beside them",
		`{"timers":null}`:                                        "missing field `operations`: an array of push and ack operations is needed, or one of kv or timers operations beside it",
		`{"kv":[{"op":"get"},{"ns":"n","op":"get\u0050refix"}]}`: "kv[1]: getPrefix is not allowed in a transaction; POST /api/v1/kv takes it",
		`{"kv":[{"op":"get","op":"put"}]}`:                       `kv[0]: key "op" is given twice`,
		`{"kv":[{"value":` + nested(512) + `}]}`:                 "kv[0]: nested deeper than 512 levels",
		`{"operations":null,"kv":[1]}`:                           "operations: an array is allowed here, got null",
		`{"kv":[{}],"kv":null}`:                                  `key "kv" is given twice`,
		`{"kv":[1,` + nested(513) + `]}`:                         "kv[1]: nested deeper than 512 levels",
		`{"timers":{"op":"cancel"}}`:                             "timers: an array of operations at the TOP LEVEL of the request is allowed here, got an object",
		`{"operations":[],"kv":"get"}`:                           "kv: an array of operations at the TOP LEVEL of the request is allowed here, got a string",
		`{"kv":`:                                                 `unexpected EOF within "/kv" after offset 6`,
		`{"kv":[1}`:                                              `invalid character '}' after array element (expecting ',' or ']') within "/kv" after offset 8`,
		start + `{"type":"kv","op":"get"}]}`:                     `operations[1]: a "kv" operation is not allowed here; it belongs into the array "kv" at the TOP LEVEL of the request, beside "operations"`,
		start + `{"op":"cancel","type":"timer"}]}`:               `operations[1]: a "timer" operation is not allowed here; it belongs into the array "timers" at the TOP LEVEL of the request, beside "operations"`,
		start + `{"op":"cancel","type":"timers"}]}`:              `operations[1]: a "timers" operation is not allowed here; it belongs into the array "timers" at the TOP LEVEL of the request, beside "operations"`,
	} {
		_, err := wire.ParseTransaction([]byte(body))
		require.EqualError(t, err, "bad body: "+want)
	}
}

func TestBadTransactionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		``, `{}`, `{"operations":null}`, `{"operations":{}}`, `{"operations":[]}`, `{"operations":[1]}`, `{"operations":[null]}`,
		`{"operations":[{}]}`, `{"operations":[{"type":"pop"}]}`, `{"operations":[{"type":null}]}`, `{"operations":[{"type":5}]}`,
		`{"operations":[{"type":"push"}]}`, `{"operations":[{"type":"push","items":[{}]}]}`, `{"operations":[{"type":"push","items":{}}]}`,
		`{"operations":[{"type":"push","queue":"q","traceId":"nope"}]}`, `{"operations":[{"type":"push","queue":"q","traceId":5}]}`,
		`{"operations":[{"type":"ack","status":5}]}`, `{"operations":[{"type":"ack"}],"requiredLeases":"l"}`,
		`{"operations":[{"type":"ack"}],"requiredLeases":[5]}`, `{"operations":[{"type":"ack"}],"kv":{}}`,
		`{"operations":[{"type":"ack"}],"operations":[]}`, `{"operations":[{"type":"ack","type":"ack"}]}`,
	} {
		_, err := wire.ParseTransaction([]byte(body))
		requireBad(t, err, body)
	}
	_, err := wire.ParseTransaction([]byte(`{"operations":[{"type":"pop"}]}`))
	require.EqualError(t, err, "segments transaction supports only push and ack operations")
}

func TestExtendNeverFails(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int{
		``: 60, `{}`: 60, `null`: 60, `x`: 60, `[]`: 60, `{"seconds":null}`: 60, `{"seconds":"5"}`: 60,
		`{"Seconds":5}`: 60, `{"seconds":5}x`: 60, `{"seconds":5`: 60, `{"seconds":true}`: 60, "{\"seconds\":5,\"x\":\"\xff\"}": 60,
		`{"seconds":1e400}`: 2147483647, `{"seconds":0.4}`: 1, ` {"x":{},"seconds":5} `: 5, `{"seconds":5,"seconds":6}`: 6,
		`{"seconds":5}`: 5, `{"seconds":0}`: 1, `{"seconds":-7}`: 1, `{"seconds":2.9}`: 2, `{"seconds":1e99}`: 2147483647,
	} {
		require.Equal(t, want, wire.ParseExtend([]byte(body)), body)
	}
}

func TestConfigureFoldsLabelsAndOptions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body, options string
		merge         bool
	}{
		"nothing":              {`{"queue":"q"}`, `{}`, false},
		"options":              {`{"queue":"q","options":{"leaseTime":5,"unknown":"\u0000","replace":true}}`, `{"leaseTime":5}`, false},
		"top level":            {`{"queue":"q","leaseTime":5,"deadLetterQueue":false}`, `{"leaseTime":5,"deadLetterQueue":false}`, false},
		"options win":          {`{"queue":"q","leaseTime":5,"options":{"retryLimit":1}}`, `{"retryLimit":1}`, false},
		"labels on top":        {`{"queue":"q","namespace":"n","task":"t","options":{}}`, `{"namespace":"n","task":"t"}`, false},
		"labels inside":        {`{"queue":"q","namespace":"n","options":{"namespace":"m"}}`, `{"namespace":"m"}`, false},
		"null labels":          {`{"queue":"q","namespace":null,"task":"","options":{"ttl":1}}`, `{"ttl":1}`, false},
		"null is kept":         {`{"queue":"q","options":{"leaseTime":null}}`, `{"leaseTime":null}`, false},
		"null options":         {`{"queue":"q","options":null}`, `{}`, false},
		"merge":                {`{"queue":"q","mode":"merge"}`, `{}`, true},
		"replace":              {`{"queue":"q","mode":"replace"}`, `{}`, false},
		"escaped mode":         {`{"queue":"q","mode":"mer\u0067e"}`, `{}`, true},
		"null on top":          {`{"queue":"q","leaseTime":null,"namespace":null}`, `{"leaseTime":null,"namespace":null}`, false},
		"one label on top":     {`{"task":"t","options":{"namespace":"m"},"queue":"q"}`, `{"namespace":"m","task":"t"}`, false},
		"escaped label":        {`{"queue":"q","namespace":"a\"\u0062"}`, `{"namespace":"a\"b"}`, false},
		"null mode":            {`{"queue":"q","mode":null}`, `{}`, false},
		"empty queue is legal": {`{"queue":""}`, `{}`, false},
		"bounds":               {`{"queue":"q","options":{"ttl":2147483647,"priority":-2147483648}}`, `{"ttl":2147483647,"priority":-2147483648}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := wire.ParseConfigure([]byte(tc.body))
			require.NoError(t, err)
			require.JSONEq(t, tc.options, string(req.Options))
			require.Equal(t, tc.merge, req.Merge)
		})
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		``, `[]`, `{}`, `{"queue":null}`, `{"queue":5}`, `{"queue":"a\u0000"}`, `{"queue":"` + strings.Repeat("q", 256) + `"}`,
		`{"queue":"q","mode":"Merge"}`, `{"queue":"q","mode":""}`, `{"queue":"q","mode":true}`, `{"queue":"q","mode":1}`,
		`{"queue":"q","options":[]}`, `{"queue":"q","options":"x"}`, `{"queue":"q","options":{"leaseTime":"5"}}`,
		`{"queue":"q","options":{"leaseTime":5.5}}`, `{"queue":"q","options":{"leaseTime":2147483648}}`, `{"queue":"q","options":{"leaseTime":1e3}}`,
		`{"queue":"q","options":{"leaseTime":true}}`, `{"queue":"q","options":{"deadLetterQueue":1}}`, `{"queue":"q","options":{"encryptionEnabled":"true"}}`,
		`{"queue":"q","options":{"namespace":5}}`, `{"queue":"q","namespace":5}`, `{"queue":"q","options":{"leaseTime":1,"leaseTime":2}}`,
		`{"queue":"q","queue":"r"}`, `{"queue":"q","options":{"task":"\ud800"}}`,
	} {
		_, err := wire.ParseConfigure([]byte(body))
		requireBad(t, err, body)
	}
	_, err := wire.ParseConfigure([]byte(`{"queue":"q","mode":"x"}`))
	require.EqualError(t, err, `mode must be "merge" or "replace", got "x"`)
}

func defaults() wire.PopDefaults {
	return wire.PopDefaults{Timeout: 30 * time.Second, SubMode: wire.ModeAll}
}

func TestPopQueries(t *testing.T) {
	t.Parallel()
	base := wire.PopQuery{Batch: 200, Partitions: 1, Timeout: 30 * time.Second, Group: "__QUEUE_MODE__", SubMode: "all"}
	with := func(change func(*wire.PopQuery)) wire.PopQuery {
		q := base
		change(&q)
		return q
	}
	for query, want := range map[string]wire.PopQuery{
		"":                           base,
		"unknown=1&autopilot=true":   base,
		"conflation=false":           base,
		"batch=0":                    base,
		"batch=-5":                   base,
		"batch=7":                    with(func(q *wire.PopQuery) { q.Batch = 7 }),
		"batch=7&batch=8":            with(func(q *wire.PopQuery) { q.Batch = 7 }),
		"partitions=0":               with(func(q *wire.PopQuery) { q.Partitions = 0 }),
		"partitions=-1":              with(func(q *wire.PopQuery) { q.Partitions = 0 }),
		"leaseSeconds=-1":            base,
		"leaseSeconds=9":             with(func(q *wire.PopQuery) { q.LeaseSeconds = 9 }),
		"autoAck=true&wait=true":     with(func(q *wire.PopQuery) { q.AutoAck, q.Wait = true, true }),
		"timeout=0":                  with(func(q *wire.PopQuery) { q.Timeout = 0 }),
		"timeout=1500":               with(func(q *wire.PopQuery) { q.Timeout = 1500 * time.Millisecond }),
		"consumerGroup=":             base,
		"consumerGroup=g%20h":        with(func(q *wire.PopQuery) { q.Group = "g h" }),
		"subscriptionMode=new":       with(func(q *wire.PopQuery) { q.SubMode = "new" }),
		"subscriptionMode=new-only":  with(func(q *wire.PopQuery) { q.SubMode = "new" }),
		"subscriptionMode=anything":  base,
		"subscriptionMode=":          base,
		"subscriptionMode=%00":       base,
		"subscriptionFrom=soon":      with(func(q *wire.PopQuery) { q.SubFrom = "soon" }),
		"subscriptionFrom=a%00":      with(func(q *wire.PopQuery) { q.SubFrom = "unreadable" }),
		"subscriptionFrom=%FF":       with(func(q *wire.PopQuery) { q.SubFrom = "unreadable" }),
		"timeout=2147483647":         with(func(q *wire.PopQuery) { q.Timeout = 2147483647 * time.Millisecond }),
		"subscriptionFrom=now":       with(func(q *wire.PopQuery) { q.SubFrom = "now" }),
		"namespace=n&task=t%2Fu":     with(func(q *wire.PopQuery) { q.Namespace, q.Task = "n", "t/u" }),
		"wait=false&autoAck=false":   base,
		"batch=2147483647&timeout=1": with(func(q *wire.PopQuery) { q.Batch, q.Timeout = 2147483647, time.Millisecond }),
	} {
		values, err := url.ParseQuery(query)
		require.NoError(t, err)
		got, err := wire.ParsePopQuery(values, defaults())
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
}

func TestUntypablePopQueriesAreRefused(t *testing.T) {
	t.Parallel()
	for _, query := range []string{
		"batch=abc", "batch=", "batch=1.5", "batch=2147483648", "partitions=x", "leaseSeconds=%20", "timeout=-1", "timeout=1s",
		"wait=1", "wait=yes", "wait=TRUE", "autoAck=", "autopilot=maybe", "conflation=1", "conflation=true",
		"consumerGroup=a%00b", "consumerGroup=" + strings.Repeat("g", 1025), "consumerGroup=%FF", "namespace=" + strings.Repeat("n", 256), "task=%0A",
		"consumerGroup=" + strings.Repeat("g", 1024) + "&namespace=" + strings.Repeat("%E2%98%83", 255) + "&task=" + strings.Repeat("%E2%98%83", 255),
	} {
		values, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = wire.ParsePopQuery(values, defaults())
		requireBad(t, err, query)
	}
	for query, want := range map[string]string{
		"batch=abc":             `batch="abc": a whole number is allowed`,
		"batch=2147483648":      `batch="2147483648": a whole number from -2147483648 to 2147483647 is allowed`,
		"wait=1":                `wait="1": true or false is allowed`,
		"timeout=-1":            `timeout="-1": 0 or more milliseconds is allowed`,
		"consumerGroup=a%0Ab":   "consumerGroup: holds a control character; letters, digits, blanks and punctuation are allowed",
		"conflation=true":       "conflation is not supported by this broker; leave the parameter out",
		"batch=x&wait=1":        `batch="x": a whole number is allowed`,
		"batch=" + long("9999"): `batch="` + long("9999")[:80] + `…": a whole number from -2147483648 to 2147483647 is allowed`,
	} {
		values, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = wire.ParsePopQuery(values, defaults())
		require.EqualError(t, err, want)
	}
}

func long(part string) string { return strings.Repeat(part, 1000) }

func TestErrorTextsDoNotEchoAWholeRequest(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"queue":"q","mode":"` + long("é") + `"}`, `{"queue":"q","options":{"ttl":` + long("9") + `}}`, `{"queue":"q","mode":[` + long("[],") + `[]]}`,
	} {
		_, err := wire.ParseConfigure([]byte(body))
		requireBad(t, err, body)
		require.Less(t, len(err.Error()), 200)
		require.True(t, utf8.ValidString(err.Error()))
	}
	_, err := wire.ParseTransaction([]byte(`{"operations":[{"type":"push","queue":"q","traceId":"` + long("x") + `"}]}`))
	require.Error(t, err)
	require.Less(t, len(err.Error()), 200)
}
