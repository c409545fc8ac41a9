package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// odd is one malformed or unusual request. In path and body, QUEUE stands for
// a queue of its own that must not exist afterwards.
type odd struct {
	method, path, body string
	status             int
	// want is the whole body where the contract fixes it; prefix is how the
	// error text begins where it fixes only that.
	want, prefix string
}

const (
	noRoute    = `{"error":"Not Found","code":"no_such_route"}`
	noLabels   = `{"success":false,"error":"namespace or task is required","messages":[]}`
	unknownOp  = "segments transaction supports only push and ack operations"
	badBody    = "bad body: "
	pushPath   = "/api/v1/push"
	ackPath    = "/api/v1/ack"
	batchPath  = "/api/v1/ack/batch"
	txPath     = "/api/v1/transaction"
	confPath   = "/api/v1/configure"
	popQueue   = "/api/v1/pop/queue/QUEUE"
	popLane    = "/api/v1/pop/queue/QUEUE/partition/p"
	popLabel   = "/api/v1/pop"
	queuesPath = "/api/v1/resources/queues"
)

// TestMalformedRequests checks that every route answers what the contract says
// to a request it cannot take, never with 500, and stores nothing.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	for _, group := range [][]odd{
		notJSON(), badPushes(), badPops(), badAcks(), badTransactions(), badConfigures(), badAdmin(), badRouting(),
	} {
		for _, c := range group {
			t.Run(c.method+" "+c.path+" "+c.body[:min(len(c.body), 70)], func(t *testing.T) {
				t.Parallel()
				b, q := shared(t)
				q = q[len(q)-20:]
				fill := strings.NewReplacer("QUEUE", q)
				var body []byte
				if c.body != "" {
					body = []byte(fill.Replace(c.body))
				}
				a, err := b.Call(t.Context(), c.method, fill.Replace(c.path), body, "Content-Type", "application/json")
				require.NoError(t, err)
				require.Equal(t, c.status, a.Status, a)
				c.requireBody(t, a)
				require.False(t, b.DB.HasQueue(t, q), "a refused request leaves nothing behind")
			})
		}
	}
}

func (c odd) requireBody(t *testing.T, a harness.Answer) {
	t.Helper()
	switch {
	case c.want != "":
		require.JSONEq(t, c.want, string(a.Body))
	case c.path == txPath && a.Status == http.StatusBadRequest:
		body := a.Object(t)
		requireKeys(t, body, "transactionId", "success", "reason", "error", "results")
		require.Equal(t, []any{false, "bad_request", []any{}}, []any{body["success"], body["reason"], body["results"]})
		require.NotEmpty(t, body["error"])
		require.True(t, strings.HasPrefix(body["error"].(string), c.prefix), a)
	case a.Status >= 400 && c.method != http.MethodHead:
		text := a.ErrorText(t)
		require.NotEmpty(t, text)
		require.True(t, strings.HasPrefix(text, c.prefix), a)
	}
}

// bad is a refused request whose error begins with "bad body: ".
func bad(path, body string) odd {
	return odd{method: http.MethodPost, path: path, body: body, status: http.StatusBadRequest, prefix: badBody}
}

// refused is a refused request with an error text of any kind.
func refused(path, body string) odd {
	return odd{method: http.MethodPost, path: path, body: body, status: http.StatusBadRequest}
}

func get(path string, status int) odd { return odd{method: http.MethodGet, path: path, status: status} }

// notJSON sends texts that are no JSON object to every route that reads one.
func notJSON() []odd {
	texts := []string{
		"", " ", "{", "}", `{"items"`, "not json", "\xff\xfe", "\xef\xbb\xbf{}", `{"items":[]} trailing`, `{}{}`, `{'items':[]}`,
		`{"items":[],}`, `{"a":01}`, `{"a":NaN}`, `{"a":"tab	inside"}`, `{"a":"\x"}`, `{"a":"` + "\xc3\x28" + `"}`, `{"a":tru}`,
		`[]`, `"text"`, `7`, `null`, `true`,
		`{"a":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, strings.Repeat("[", 100000),
	}
	var out []odd
	for _, path := range []string{pushPath, ackPath, batchPath, confPath} {
		for _, text := range texts {
			if path == ackPath && text == "null" {
				continue // an absent everything
			}
			out = append(out, bad(path, text))
		}
	}
	for _, text := range texts {
		out = append(out, refused(txPath, text))
	}
	return out
}

func badPushes() []odd {
	item := func(members string) string { return `{"items":[{"queue":"QUEUE-ok","payload":1},{` + members + `}]}` }
	out := []odd{}
	for _, body := range []string{
		`{}`, `{"items":null}`, `{"items":{}}`, `{"items":"x"}`, `{"items":1}`, `{"Items":[]}`,
		`{"items":[null]}`, `{"items":[1]}`, `{"items":["x"]}`, `{"items":[[]]}`, `{"items":[{}]}`,
		item(`"queue":"QUEUE"`), item(`"queue":"QUEUE","data":1`), item(`"payload":1`), item(`"queue":null,"payload":1`),
		item(`"queue":7,"payload":1`), item(`"queue":["QUEUE"],"payload":1`), item(`"queue":"QUEUE","payload":1,"partition":7`),
		item(`"queue":"QUEUE","payload":1,"partition":{}`), item(`"queue":"QUEUE","payload":1,"transactionId":7`),
		item(`"queue":"QUEUE","payload":1,"transactionId":["x"]`), item(`"queue":"QUEUE","payload":}`), item(`"queue":"QUEUE","payload":1 2`),
		item(`"queue":"QUEUE","payload":` + strings.Repeat("[", 513) + strings.Repeat("]", 513)),
		item(`"queue":"QUEUE","payload":"` + "\xff" + `"`),
	} {
		out = append(out, bad(pushPath, body))
	}
	for _, body := range []string{ // names out of bounds
		item(`"queue":"QUEUE` + strings.Repeat("x", 256) + `","payload":1`),
		item(`"queue":"QUEUE\u0000","payload":1`), item(`"queue":"QUEUE\n","payload":1`), item(`"queue":"QUEUE\u007f","payload":1`),
		item(`"queue":"QUEUE\ud800","payload":1`),
		item(`"queue":"QUEUE","payload":1,"partition":"` + strings.Repeat("p", 1025) + `"`),
		item(`"queue":"QUEUE","payload":1,"partition":"` + strings.Repeat("ż", 513) + `"`),
		item(`"queue":"QUEUE","payload":1,"partition":"a\tb"`), item(`"queue":"QUEUE","payload":1,"partition":"\u0000"`),
		item(`"queue":"QUEUE","payload":1,"transactionId":"` + strings.Repeat("t", 1025) + `"`),
		item(`"queue":"QUEUE","payload":1,"transactionId":"a\u0001"`), item(`"queue":"QUEUE","payload":1,"transactionId":"\u0000"`),
	} {
		out = append(out, refused(pushPath, body))
	}
	return out
}

func badPops() []odd {
	var out []odd
	for _, query := range []string{
		"batch=abc", "batch=1.5", "batch=", "batch=1e3", "batch=99999999999999999999", "batch=0x10", "batch=%00", "partitions=x", "partitions=true",
		"leaseSeconds=soon", "leaseSeconds=9999999999999", "timeout=1s", "timeout=abc&wait=true", "autoAck=1", "autoAck=yes", "autoAck=TRUE",
		"autoAck=", "wait=1", "wait=on", "wait=True", "wait=0", "autopilot=2", "conflation=x", "conflation=true",
		"conflation=true&consumerGroup=g", "consumerGroup=" + strings.Repeat("g", 1025), "consumerGroup=a%00b", "consumerGroup=a%0Ab", "consumerGroup=%FF",
	} {
		out = append(out, get(popQueue+"?"+query, 400), get(popLane+"?"+query, 400), get(popLabel+"?namespace=QUEUE&"+query, 400))
	}
	for _, path := range []string{
		"/api/v1/pop/queue/" + strings.Repeat("q", 256), "/api/v1/pop/queue/QUEUE%00", "/api/v1/pop/queue/QUEUE%0A", "/api/v1/pop/queue/QUEUE%FF",
		"/api/v1/pop/queue/QUEUE/partition/" + strings.Repeat("p", 1025), "/api/v1/pop/queue/QUEUE/partition/%00", "/api/v1/pop/queue/QUEUE/partition/%C3%28",
	} {
		out = append(out, get(path, 400))
	}
	out = append(out,
		odd{method: "GET", path: popLabel, status: 400, want: noLabels},
		odd{method: "GET", path: popLabel + "?namespace=&task=", status: 400, want: noLabels},
		odd{method: "GET", path: popLabel + "?ns=x", status: 400, want: noLabels},
		get(popLane+"?subscriptionFrom=garbage&consumerGroup=g", 204),
		get(popLane+"?subscriptionMode=%F0%9F%90%9D&consumerGroup=g", 204),
		get(popLane+"?batch=-1&partitions=-1&leaseSeconds=-1", 204),
		get(popLane+"?unknown=1&batch=1&autopilot=true&maxPartitions=abc", 204),
		get(popLane+"?wait=true&timeout=0", 204),
		get(popLabel+"?namespace=QUEUE&subscriptionFrom=garbage", 204),
	)
	return out
}

func badAcks() []odd {
	const ghost = `"transactionId":"t","partitionId":"019a0000-0000-7000-8000-000000000000"`
	var out []odd
	for _, body := range []string{
		`{"transactionId":7}`, `{"transactionId":{}}`, `{"partitionId":7}`, `{"status":7}`, `{"status":[]}`, `{"leaseId":7}`, `{"error":7}`,
		`{"consumerGroup":7}`, `{"consumerGroup":{}}`,
	} {
		out = append(out, bad(ackPath, body))
	}
	for _, body := range []string{
		`{}`, `{"acknowledgments":null}`, `{"acknowledgments":{}}`, `{"acknowledgments":"x"}`, `{"acknowledgements":[]}`, `{"acknowledgments":[null]}`,
		`{"acknowledgments":[1]}`, `{"acknowledgments":[[]]}`, `{"acknowledgments":[{"transactionId":7}]}`, `{"acknowledgments":[],"consumerGroup":7}`,
		`{"acknowledgments":[{` + ghost + `},{"status":7}]}`,
	} {
		out = append(out, bad(batchPath, body))
	}
	for _, body := range []string{ // names out of bounds
		`{` + ghost + `,"consumerGroup":"` + strings.Repeat("g", 1025) + `"}`, `{` + ghost + `,"consumerGroup":"a\u0000"}`,
	} {
		out = append(out, refused(ackPath, body))
	}
	// Well-formed but hopeless acknowledgements are answered item by item.
	for _, members := range []string{
		``, `"transactionId":"","partitionId":""`, `"transactionId":null,"partitionId":null,"status":null,"leaseId":null,"error":null`,
		`"transactionId":"t"`, `"partitionId":"019a0000-0000-7000-8000-000000000000"`, ghost, ghost + `,"status":"nonsense"`,
		ghost + `,"leaseId":"nonsense"`, `"transactionId":"t","partitionId":"not-a-uuid"`, `"transactionId":"t","partitionId":"; DROP TABLE"`,
		`"transactionId":"t","partitionId":"` + strings.Repeat("a", 5000) + `"`, `"transactionId":"t","partitionId":"{019a0000-0000-7000-8000-000000000000}"`,
	} {
		out = append(out,
			odd{method: "POST", path: ackPath, body: `{` + members + `}`, status: 200},
			odd{method: "POST", path: batchPath, body: `{"acknowledgments":[{` + members + `}]}`, status: 200})
	}
	return out
}

func badTransactions() []odd {
	op := func(members string) string {
		return `{"operations":[{"type":"push","queue":"QUEUE","payload":1},{` + members + `}]}`
	}
	var out []odd
	for _, body := range []string{
		`{}`, `{"operations":null}`, `{"operations":{}}`, `{"operations":"x"}`, `{"operations":[null]}`, `{"operations":[1]}`, `{"operations":[[]]}`,
		op(`"type":"push","items":{}`), op(`"type":"push","items":[1]`), op(`"type":"push","items":[{"queue":7}]`), op(`"type":"push","payload":1`),
		op(`"type":"push","items":[{"payload":1}]`), op(`"type":"push","queue":"QUEUE","partition":7`),
		op(`"type":"push","queue":"QUEUE","payload":1,"transactionId":{}`), op(`"type":"ack","transactionId":7`), op(`"type":"ack","consumerGroup":[]`),
		op(`"type":"push","queue":"QUEUE` + strings.Repeat("x", 256) + `"`), op(`"type":"push","queue":"QUEUE","partition":"` + strings.Repeat("x", 1025) + `"`),
		op(`"type":"push","queue":"QUEUE","transactionId":"a\u0000"`), `{"operations":[]}`, `{"operations":[],"requiredLeases":"x"}`, `{"operations":[],"requiredLeases":[7]}`,
	} {
		out = append(out, refused(txPath, body))
	}
	for _, members := range []string{``, `"type":"pop"`, `"type":"Push"`, `"type":""`, `"type":null`, `"type":7`} {
		c := refused(txPath, op(members))
		c.prefix = unknownOp
		out = append(out, c)
	}
	// Well-formed but hopeless bundles are processed and rolled back.
	for _, members := range []string{
		`"type":"ack"`, `"type":"ack","transactionId":"t","partitionId":"not-a-uuid"`,
		`"type":"ack","transactionId":"t","partitionId":"019a0000-0000-7000-8000-000000000000"`,
		`"type":"ack","transactionId":"t","partitionId":"019a0000-0000-7000-8000-000000000000","status":"nonsense"`,
	} {
		out = append(out, odd{method: "POST", path: txPath, body: op(members), status: 200})
	}
	return out
}

func badConfigures() []odd {
	var out []odd
	for _, body := range []string{
		`{}`, `{"queue":null}`, `{"queue":7}`, `{"queue":["QUEUE"]}`, `{"name":"QUEUE"}`, `{"queue":"QUEUE","options":7}`, `{"queue":"QUEUE","options":[]}`,
		`{"queue":"QUEUE","options":"x"}`,
	} {
		out = append(out, refused(confPath, body))
	}
	for _, option := range []string{
		`"leaseTime":"60"`, `"leaseTime":1.5`, `"leaseTime":true`, `"leaseTime":[]`, `"leaseTime":99999999999`, `"retryLimit":{}`, `"deadLetterQueue":"true"`,
		`"deadLetterQueue":1`, `"namespace":7`, `"task":{}`, `"priority":"high"`, `"encryptionEnabled":"yes"`, `"dedupWindowSeconds":"x"`,
	} {
		out = append(out, refused(confPath, `{"queue":"QUEUE","options":{`+option+`}}`))
	}
	for _, body := range []string{
		`{"queue":"QUEUE` + strings.Repeat("x", 256) + `"}`, `{"queue":"QUEUE\u0000"}`, `{"queue":"QUEUE\n"}`,
		`{"queue":"QUEUE","options":{"namespace":"` + strings.Repeat("n", 256) + `"}}`, `{"queue":"QUEUE","namespace":"a\u0000"}`,
	} {
		out = append(out, refused(confPath, body))
	}
	return out
}

func badAdmin() []odd {
	return []odd{
		{method: "GET", path: queuesPath + "/QUEUE", status: 404, want: `{"error":"Queue not found"}`},
		{method: "GET", path: queuesPath + "/" + strings.Repeat("q", 256), status: 400},
		{method: "GET", path: queuesPath + "/QUEUE%00", status: 400},
		{method: "DELETE", path: queuesPath + "/QUEUE%00", status: 400},
		{method: "DELETE", path: queuesPath + "/QUEUE%FF", status: 400},
		{method: "GET", path: "/api/v1/dlq?queue=QUEUE&from=&to=&partition=&consumerGroup=", status: 200,
			want: `{"messages":[],"pagination":{"limit":100,"offset":0},"total":0}`},
		{method: "GET", path: "/api/v1/dlq?queue=%00", status: 400},
		{method: "GET", path: "/api/v1/dlq?queue=QUEUE&consumerGroup=%FF", status: 400},
		{method: "POST", path: "/api/v1/lease/%00/extend", body: `{}`, status: 200},
		{method: "POST", path: "/api/v1/lease/" + strings.Repeat("x", 3000) + "/extend", body: `{}`, status: 200},
		{method: "POST", path: "/api/v1/lease/%FF/extend", status: 200},
	}
}

func badRouting() []odd {
	lost := func(method, path string) odd { return odd{method: method, path: path, status: 404, want: noRoute} }
	wrong := func(method, path string) odd { return odd{method: method, path: path, status: 405} }
	return []odd{
		lost("GET", "/api/"), lost("GET", "/api/v1"), lost("GET", "/api/v1/unknown"), lost("GET", "/api/v2/push"),
		lost("POST", "/api/v1/unknown"), lost("POST", "/"), lost("PUT", "/anything"), lost("DELETE", "/"), lost("POST", "/api/v1/pop/queue"),
		lost("POST", "/api/v1/push/more"), lost("GET", "/api/v1/Push"), lost("POST", "/API/v1/push"), lost("POST", "/api/v1/ack/batch/more"),
		lost("POST", "/api/v1/lease/x"), lost("POST", "/api/v1/lease/x/renew"), lost("GET", "/api/v1/pop/queue/a/b/c"),
		lost("GET", "/api/v1/pop/queue/QUEUE/unknown/x"), lost("PATCH", "/api/v1/nothing"), lost("OPTIONS", "/api/v1/nothing"),
		wrong("GET", pushPath), wrong("PUT", pushPath), wrong("DELETE", pushPath), wrong("PATCH", pushPath),
		wrong("POST", popQueue), wrong("DELETE", popQueue), wrong("POST", popLane), wrong("POST", popLabel+"?namespace=QUEUE"),
		wrong("GET", ackPath), wrong("PUT", batchPath), wrong("GET", "/api/v1/lease/x/extend"), wrong("GET", txPath), wrong("GET", confPath),
		wrong("POST", queuesPath), wrong("POST", queuesPath+"/QUEUE"), wrong("PUT", queuesPath+"/QUEUE"), wrong("POST", "/api/v1/dlq"),
		wrong("POST", "/health"), wrong("PUT", "/status"), wrong("POST", "/metrics"), wrong("POST", "/metrics/prometheus"), wrong("POST", "/openapi.yaml"),
		wrong("PUT", "/api/v1/system/maintenance"), wrong("DELETE", "/api/v1/system/maintenance/pop"), wrong("POST", "/api/v1/system/shared-state"),
		wrong("DELETE", "/api/v1/system/kv-timers"), wrong("POST", "/api/v1/status/buffers"), wrong("POST", "/auth/me"), wrong("POST", "/auth/login"),
		wrong("GET", "/auth/logout"), wrong("GET", "/internal/api/notify"), wrong("POST", "/internal/api/shared-state/stats"),
		wrong("POST", "/internal/api/inter-instance/stats"), wrong("GET", "/api/v1/kv"), wrong("POST", "/api/v1/kv/QUEUE/k"), wrong("GET", "/api/v1/timers"),
		wrong("POST", "/api/v1/timers/QUEUE"), wrong("PUT", "/api/v1/timers/QUEUE/k"), wrong("POST", "/api/v1/consumer-groups"),
		wrong("POST", "/api/v1/consumer-groups/QUEUE"), wrong("GET", "/api/v1/consumer-groups/QUEUE/subscription"),
		lost("GET", "/api/v1/messages/QUEUE"), lost("POST", "/api/v1/migration/start"), lost("GET", "/api/v1/status/queues/QUEUE/messages"),
		lost("POST", "/api/v1/queues/QUEUE/clear"), lost("GET", "/api/v1/system/unknown"), lost("GET", "/internal/api/unknown"), lost("GET", "/auth/unknown"),
		lost("POST", "/auth/unknown"), lost("GET", "/api/v1/system/maintenance/push"), lost("GET", queuesPath+"/QUEUE/a/b"),
	}
}

func TestErrorTextsAreEscaped(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	for _, path := range []string{
		"/api/v1/pop/queue/q?batch=" + "%22%5C%0A%3Cb%3E", "/api/v1/pop/queue/q?wait=%F0%9F%90%9D", "/api/v1/pop/queue/q?timeout=%00%01",
	} {
		a := b.Get(t, path)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.NotEmpty(t, a.ErrorText(t))
	}
	a := b.Post(t, pushPath, "{\"items\":[{\"queue\":\"a\\\"b\\\\\\u0000\",\"payload\":1}]}")
	require.Equal(t, http.StatusBadRequest, a.Status, a)
	require.NotEmpty(t, a.ErrorText(t))
}

func TestBrokerSurvivesBadHTTP(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	for i, request := range []string{
		"NONSENSE\n\n", "GET /health\n\n", "GET /health HTTP/9.9\nHost: x\n\n", "POST /api/v1/push HTTP/1.1\nHost: x\nContent-Length: -1\n\n",
		"POST /api/v1/push HTTP/1.1\nHost: x\nContent-Length: abc\n\n", "GET /api/v1/pop/queue/%zz HTTP/1.1\nHost: x\n\n",
		"POST /api/v1/push HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\nzz\n", "GET / HTTP/1.1\nHost: x\nX: " + strings.Repeat("y", 200000) + "\n\n",
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			c := dial(t, b)
			c.send(t, request)
			line, err := c.in.ReadString('\n')
			if err == nil {
				require.NotContains(t, line, " 500 ")
				require.NotContains(t, line, " 200 ")
			}
			require.Equal(t, http.StatusOK, b.Get(t, "/health").Status)
		})
	}
}
