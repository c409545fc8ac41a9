package timers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/pkg/store"
	"github.com/queenmq/queen/pkg/wire"
	"github.com/queenmq/queen/services/broker/internal/mint"
	"github.com/queenmq/queen/services/broker/internal/timers"
)

var tenant = store.DefaultTenant()

// horizons is one horizon for everybody.
type horizons time.Duration

func (h horizons) Horizon(uuid.UUID) time.Duration { return time.Duration(h) }

func newEdge(cfg timers.Config) *timers.Edge {
	return timers.NewEdge(cfg, horizons(time.Hour), mint.NewSource())
}

// schedule is an operation whose members may be replaced, and dropped by nil.
func schedule(changes map[string]any) string {
	op := map[string]any{"op": "schedule", "queue": "q", "timerKey": "k", "delayMs": 5, "txn": "t", "payload": "e30="}
	for name, value := range changes {
		if op[name] = value; value == nil {
			delete(op, name)
		}
	}
	text, err := json.Marshal(op)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func requireRefused(t *testing.T, err error, status int, code, reason, detail string) {
	t.Helper()
	var refused *wire.Refusal
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []any{status, code, reason}, []any{refused.Status, refused.Code, refused.Reason}, refused.Detail)
	require.Contains(t, refused.Detail, detail)
}

func TestSchedulesGetAMessageID(t *testing.T) {
	t.Parallel()
	edge := newEdge(timers.Config{})
	sent := `[ {"op":"schedule","queue":"q","timerKey":"a","delayMs":1.5,"txn":"t","payload":"e30=","other":{"_x":[1]}},` +
		`{"op":"cancel","queue":"q","timerKey":"b"}, { "\u006fp" : "re\u0073chedule", "queue":"q","timerKey":"c","delayMs":-7,"txn":"t","payload":""},{"op":"what"}]`
	p, err := edge.Prepare(tenant, json.RawMessage(sent), false)
	require.NoError(t, err)
	require.Equal(t, []any{4, 2, true, time.Duration(0)}, []any{p.Count, p.Schedules, p.Others, p.Soonest})

	var before, after []map[string]any
	require.NoError(t, json.Unmarshal([]byte(sent), &before))
	require.NoError(t, json.Unmarshal(p.Ops, &after))
	var ids []uuid.UUID
	for _, i := range []int{0, 2} {
		id, err := uuid.Parse(after[i]["_messageId"].(string))
		require.NoError(t, err)
		require.Equal(t, uuid.Version(7), id.Version())
		ids = append(ids, id)
		delete(after[i], "_messageId")
	}
	require.Equal(t, before, after)
	require.Negative(t, strings.Compare(ids[0].String(), ids[1].String()), "ids ascend in the order of the operations")
}

func TestWhatSchedulesNothingPassesUntouched(t *testing.T) {
	t.Parallel()
	edge := newEdge(timers.Config{})
	for _, ops := range []string{
		`[]`, ` [ ] `, `[{"op":"cancel"}]`, `[{"op":7},{},{"op":"postpone","payload":1}]`,
		`[{"op":"cancel","queue":"` + strings.Repeat("q", 300) + `","delayMs":1e300,"payload":"?"}]`,
	} {
		p, err := edge.Prepare(tenant, json.RawMessage(ops), false)
		require.NoError(t, err, ops)
		require.Equal(t, ops, string(p.Ops))
		require.Zero(t, p.Schedules)
		require.Equal(t, p.Count > 0, p.Others)
	}
}

func TestTheSoonestScheduleCounts(t *testing.T) {
	t.Parallel()
	for delays, want := range map[string]time.Duration{
		"5000":               5 * time.Second,
		"5000 20 300":        20 * time.Millisecond,
		"300 0.25":           250 * time.Microsecond,
		"300 -1":             0,
		"-1e400 100":         0,
		"3600000 3.6e6":      time.Hour,
		"1E3 3600000":        time.Second,
		"900 9e-400 1000000": 0,
	} {
		var ops []string
		for i, delay := range strings.Fields(delays) {
			ops = append(ops, schedule(map[string]any{"timerKey": fmt.Sprint(i), "delayMs": json.RawMessage(delay)}))
		}
		p, err := newEdge(timers.Config{}).Prepare(tenant, json.RawMessage("["+strings.Join(ops, ",")+"]"), false)
		require.NoError(t, err, delays)
		require.Equal(t, want, p.Soonest, delays)
		require.False(t, p.Others)
	}
}

func TestBadOperationsAreRefused(t *testing.T) {
	t.Parallel()
	const bad, code = http.StatusBadRequest, timers.CodeBadRequest
	edge := newEdge(timers.Config{})
	for _, c := range []struct {
		name, ops, reason, detail string
	}{
		{"no array", `{}`, timers.ReasonBadBody, "operations: an array of operations is needed"},
		{"nothing", ``, timers.ReasonBadBody, "an array"},
		{"cut off", `[{"op":"cancel"`, timers.ReasonBadBody, "operations: "},
		{"a comma at the end", `[{},]`, timers.ReasonBadBody, "operations: "},
		{"something behind", `[] 1`, timers.ReasonBadBody, "behind the array"},
		{"no object", `[{"op":"cancel"}, "x"]`, timers.ReasonBadOp, "operations[1]: must be an object"},
		{"a server's field", `[{"op":"cancel","_x":1}]`, timers.ReasonServerOwned, "operations[0]: "},
		{"a message id", `[` + schedule(map[string]any{"_messageId": uuid.NewString()}) + `]`, timers.ReasonServerOwned, "operations[0]: "},
		{"one in disguise", `[{"op":"what","\u005ftenant":1}]`, timers.ReasonServerOwned, "underscore"},
		{"a member twice", `[{"op":"schedule","delayMs":1,"delay\u004ds":2}]`, timers.ReasonBadOp, `operations[0]: "delayMs" is given twice`},
		{"two kinds", `[{"op":"cancel","op":"schedule"}]`, timers.ReasonBadOp, `"op" is given twice`},
		{"no queue", `[` + schedule(map[string]any{"queue": nil}) + `]`, timers.ReasonQueueRequired, "operations[0]: queue"},
		{"an empty queue", `[` + schedule(map[string]any{"queue": ""}) + `]`, timers.ReasonQueueRequired, "queue"},
		{"a queue that is a number", `[` + schedule(map[string]any{"queue": 7}) + `]`, timers.ReasonQueueRequired, "queue"},
		{"no delay", `[` + schedule(map[string]any{"delayMs": nil}) + `]`, timers.ReasonDelayRequired, "delayMs"},
		{"a delay in quotes", `[` + schedule(map[string]any{"delayMs": "5"}) + `]`, timers.ReasonDelayRequired, "delayMs"},
		{"no payload", `[` + schedule(map[string]any{"payload": nil}) + `]`, timers.ReasonPayloadRequired, "payload"},
		{"a payload that is JSON", `[` + schedule(map[string]any{"payload": map[string]any{}}) + `]`, timers.ReasonPayloadRequired, "payload"},
		{"no base64", `[` + schedule(map[string]any{"payload": "{}"}) + `]`, timers.ReasonPayloadNotBase64, "payload"},
		{"half a character", `[{"op":"schedule","queue":"q","delayMs":1,"payload":"e30\ud800"}]`, timers.ReasonPayloadNotBase64, "payload"},
		{"a long queue", `[` + schedule(map[string]any{"queue": strings.Repeat("é", 256)}) + `]`, timers.ReasonBadOp, "queue: longer than 255 characters"},
		{"a long partition", `[` + schedule(map[string]any{"partition": strings.Repeat("p", 1025)}) + `]`, timers.ReasonBadOp, "partition: longer than 1024 bytes"},
		{"a long txn", `[` + schedule(map[string]any{"txn": strings.Repeat("t", 1025)}) + `]`, timers.ReasonBadOp, "txn: longer than 1024 bytes"},
		{"a NUL", `[` + schedule(map[string]any{"queue": "a\x00b"}) + `]`, timers.ReasonBadOp, "queue: holds a control character"},
		{"a line break", `[` + schedule(map[string]any{"partition": "a\nb"}) + `]`, timers.ReasonBadOp, "partition: holds a control character"},
		{"a DEL", `[` + schedule(map[string]any{"txn": "a\x7fb"}) + `]`, timers.ReasonBadOp, "txn: holds a control character"},
		{"a broken name", `[{"op":"schedule","queue":"\ud800","delayMs":1,"payload":""}]`, timers.ReasonBadOp, "queue: holds an unpaired surrogate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := edge.Prepare(tenant, json.RawMessage(c.ops), false)
			requireRefused(t, err, bad, code, c.reason, c.detail)
		})
	}
}

func TestNamesUpToTheirLimitsPass(t *testing.T) {
	t.Parallel()
	ops := `[` + schedule(map[string]any{
		"queue": strings.Repeat("é", 255), "partition": strings.Repeat("p", 1024), "txn": strings.Repeat("t", 1024),
	}) + `]`
	_, err := newEdge(timers.Config{}).Prepare(tenant, json.RawMessage(ops), false)
	require.NoError(t, err)
}

func TestARiderIsCalledByItsName(t *testing.T) {
	t.Parallel()
	_, err := newEdge(timers.Config{}).Prepare(tenant, json.RawMessage(`[1]`), true)
	requireRefused(t, err, http.StatusBadRequest, timers.CodeBadRequest, timers.ReasonBadOp, "timers[0]: ")
}

func TestTheOperationsOfACallAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg   timers.Config
		limit int
	}{"by default": {timers.Config{}, 256}, "by configuration": {timers.Config{MaxOps: 3}, 3}} {
		edge := newEdge(c.cfg)
		ops := func(n int) json.RawMessage {
			return json.RawMessage(`[` + strings.TrimSuffix(strings.Repeat(`{"op":"cancel"},`, n), ",") + `]`)
		}
		p, err := edge.Prepare(tenant, ops(c.limit), false)
		require.NoError(t, err, name)
		require.Equal(t, c.limit, p.Count)
		_, err = edge.Prepare(tenant, ops(c.limit+1), false)
		requireRefused(t, err, http.StatusBadRequest, timers.CodeBadRequest, timers.ReasonTooManyOps, fmt.Sprintf("more than %d", c.limit))
	}
}

func TestTheHorizonIsTheTenants(t *testing.T) {
	t.Parallel()
	edge := newEdge(timers.Config{})
	for delay, fine := range map[string]bool{
		"3600000": true, "3600000.0": true, "3600000.001": false, "3600001": false, "1e400": false, "-1e400": true,
	} {
		_, err := edge.Prepare(tenant, json.RawMessage(`[`+schedule(map[string]any{"delayMs": json.RawMessage(delay)})+`]`), false)
		if fine {
			require.NoError(t, err, delay)
			continue
		}
		requireRefused(t, err, http.StatusForbidden, timers.CodeHorizonExceeded, timers.ReasonHorizon, "3600000 milliseconds")
	}
}

func TestPayloadsAreMeasuredDecoded(t *testing.T) {
	t.Parallel()
	edge := newEdge(timers.Config{MaxPayloadBytes: 4})
	for payload, fine := range map[string]bool{
		`""`: true, `"AAAAAA=="`: true, `"AAAAAAA="`: false, `"AAAAAAAA"`: false,
		`"\u0041\/+A\r\n AA=\t="`: true, `"\u0041\/+A\r\n AAA\t="`: false,
	} {
		_, err := edge.Prepare(tenant, json.RawMessage(`[`+schedule(map[string]any{"payload": json.RawMessage(payload)})+`]`), false)
		if fine {
			require.NoError(t, err, payload)
			continue
		}
		requireRefused(t, err, http.StatusRequestEntityTooLarge, wire.CodePayloadTooLarge, timers.ReasonPayloadTooLarge, "4 are allowed")
	}
}

func TestTheUsualPayloadLimitIsAMebibyte(t *testing.T) {
	t.Parallel()
	edge := newEdge(timers.Config{})
	// 1398104 characters are 1048578 bytes without padding, two less with it.
	for tail, fine := range map[string]bool{"==": true, "A=": false, "AA": false} {
		payload := strings.Repeat("A", 1398102) + tail
		_, err := edge.Prepare(tenant, json.RawMessage(`[`+schedule(map[string]any{"payload": payload})+`]`), false)
		if fine {
			require.NoError(t, err)
			continue
		}
		requireRefused(t, err, http.StatusRequestEntityTooLarge, wire.CodePayloadTooLarge, timers.ReasonPayloadTooLarge, "1048576 are allowed")
	}
}

func BenchmarkPrepare256Schedules(b *testing.B) {
	edge := newEdge(timers.Config{})
	var ops []string
	for i := range 256 {
		ops = append(ops, schedule(map[string]any{
			"queue": "reminders", "timerKey": fmt.Sprintf("order-%d", i), "txn": uuid.NewString(), "partition": fmt.Sprintf("lane-%d", i%10),
			"payload": strings.Repeat("QUJD", 67) + "QUI=", // 203 bytes
		}))
	}
	body := json.RawMessage("[" + strings.Join(ops, ",") + "]")
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := edge.Prepare(tenant, body, false); err != nil {
			b.Fatal(err)
		}
	}
}
