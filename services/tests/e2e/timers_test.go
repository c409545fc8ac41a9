package e2e_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

const (
	timersPath = "/api/v1/timers"

	// arrival is how long the suites of the clients wait for a fired message.
	arrival = 60 * time.Second
	// later is so far away that no test sees it.
	later = 3_600_000
)

// schedule is what the clients send; more replaces or adds members.
func schedule(queue, key string, delayMs int, data any, more ...any) object {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return plus(object{
		"op": "schedule", "queue": queue, "timerKey": key, "delayMs": delayMs, "txn": "txn-" + key,
		"payload": base64.StdEncoding.EncodeToString(text),
	}, more...)
}

func cancel(queue, key string, more ...any) object {
	return plus(object{"op": "cancel", "queue": queue, "timerKey": key}, more...)
}

// timers carries out operations and requires a result for each.
func timers(t *testing.T, b *harness.Broker, header []string, ops ...object) []object {
	t.Helper()
	a := send(t, b, header, http.MethodPost, timersPath, mustJSON(t, object{"operations": ops}))
	require.Equal(t, http.StatusOK, a.Status, a)
	var answer struct {
		Results []object `json:"results"`
	}
	a.Into(t, &answer)
	require.Len(t, answer.Results, len(ops), a)
	return answer.Results
}

// timerPath is the route of one timer. JavaScript escapes the slash in a key, Go
// does not.
func timerPath(queue, key string, escape func(string) string) string {
	return timersPath + "/" + url.PathEscape(queue) + "/" + escape(key)
}

// eachClient runs a test of the common broker as either client.
func eachClient(t *testing.T, test func(t *testing.T, b *harness.Broker, q string, header []string, escape func(string) string)) {
	t.Helper()
	t.Parallel()
	for name, c := range map[string]struct {
		header []string
		escape func(string) string
	}{"JavaScript": {asJS(), url.PathEscape}, "Go": {asGo(), rawSlashes}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			test(t, b, q, c.header, c.escape)
		})
	}
}

func TestTimersClientScheduleAndPeek(t *testing.T) {
	eachClient(t, func(t *testing.T, b *harness.Broker, q string, header []string, escape func(string) string) {
		for _, key := range []string{"k/1", "k", "a b?c#d", "ключ", "p%2Fq", "/k"} {
			began := time.Now()
			r := timers(t, b, header, schedule(q, key, later, object{"n": key}, "partition", "lane"))[0]
			id := r["messageId"].(string)
			requireUUIDv7(t, id)
			require.Equal(t, object{"ok": true, "status": "scheduled", "queue": q, "timerKey": key, "txn": "txn-" + key},
				part(r, "ok", "status", "queue", "timerKey", "txn"))
			require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, r["deliverAt"])
			require.WithinDuration(t, began.Add(later*time.Millisecond), requireInstant(t, r["deliverAt"]), time.Minute)

			a := send(t, b, header, "GET", timerPath(q, key, escape), "")
			require.Equal(t, http.StatusOK, a.Status, a)
			peek := a.Object(t)
			require.Equal(t, object{
				"found": true, "queue": q, "timerKey": key, "partition": "lane", "deliverAt": r["deliverAt"], "txn": "txn-" + key, "messageId": id,
				"payloadZstd": false, "encrypted": false, "producerSub": nil, "attempts": 0.0, "lastError": nil, "claimed": false,
			}, part(peek, "found", "queue", "timerKey", "partition", "deliverAt", "txn", "messageId", "payloadZstd", "encrypted",
				"producerSub", "attempts", "lastError", "claimed"), a)
			payload, err := base64.StdEncoding.DecodeString(peek["payload"].(string))
			require.NoError(t, err)
			require.JSONEq(t, mustJSON(t, object{"n": key}), string(payload))
			requireInstant(t, peek["createdAt"])
			requireInstant(t, peek["updatedAt"])
		}
		require.False(t, b.DB.HasQueue(t, q), "the queue is born at the fire")
		a := send(t, b, header, "GET", timerPath(q, "none/such", escape), "")
		require.Equal(t, http.StatusOK, a.Status)
		require.JSONEq(t, mustJSON(t, object{"found": false, "queue": q, "timerKey": "none/such"}), string(a.Body))
	})
}

func TestTimersClientReschedule(t *testing.T) {
	eachClient(t, func(t *testing.T, b *harness.Broker, q string, header []string, escape func(string) string) {
		first := timers(t, b, header, schedule(q, "k", later, 1))[0]
		created := send(t, b, header, "GET", timerPath(q, "k", escape), "").Object(t)["createdAt"]
		for _, op := range []string{"schedule", "reschedule"} {
			r := timers(t, b, header, schedule(q, "k", 2*later, 2, "txn", op, "op", op, "partition", "other"))[0]
			require.Equal(t, object{"ok": true, "status": "rescheduled", "txn": op}, part(r, "ok", "status", "txn"))
			require.NotEqual(t, first["messageId"], r["messageId"])
			peek := send(t, b, header, "GET", timerPath(q, "k", escape), "").Object(t)
			require.Equal(t, object{"txn": op, "messageId": r["messageId"], "deliverAt": r["deliverAt"], "partition": "other", "createdAt": created},
				part(peek, "txn", "messageId", "deliverAt", "partition", "createdAt"))
		}
		require.Equal(t, "scheduled", timers(t, b, header, schedule(q, "fresh", later, 1, "op", "reschedule"))[0]["status"])
	})
}

func TestTimersClientCancel(t *testing.T) {
	eachClient(t, func(t *testing.T, b *harness.Broker, q string, header []string, escape func(string) string) {
		timers(t, b, header, schedule(q, "k/1", later, 1), schedule(q, "l", later, 2))
		a := send(t, b, header, "DELETE", timerPath(q, "k/1", escape), "")
		require.Equal(t, http.StatusOK, a.Status, a)
		require.JSONEq(t, mustJSON(t, object{"ok": true, "status": "cancelled", "queue": q, "timerKey": "k/1", "txn": "txn-k/1"}), string(a.Body))
		require.Equal(t, object{"ok": true, "status": "cancelled", "txn": "txn-l"}, part(timers(t, b, header, cancel(q, "l"))[0], "ok", "status", "txn"))

		a = send(t, b, header, "DELETE", timerPath(q, "never/was", escape)+"?txn=mine%2F1&other=2", "")
		require.Equal(t, http.StatusOK, a.Status, a)
		require.JSONEq(t, mustJSON(t, object{"ok": false, "status": "absent", "queue": q, "timerKey": "never/was", "txn": "mine/1"}), string(a.Body))
		a = send(t, b, header, "DELETE", timerPath(q, "k/1", escape), "")
		require.Equal(t, object{"ok": false, "status": "absent", "txn": nil}, part(a.Object(t), "ok", "status", "txn"))
		r := timers(t, b, header, cancel(q, "never", "txn", "mine"))[0]
		require.Equal(t, object{"ok": false, "status": "absent", "txn": "mine"}, part(r, "ok", "status", "txn"))
	})
}

func TestTimersClientListsInPages(t *testing.T) {
	eachClient(t, func(t *testing.T, b *harness.Broker, q string, header []string, _ func(string) string) {
		timers(t, b, header, schedule(q, "c", later, 1), schedule(q, "a/1", later, 2), schedule(q, "B", later, 3), schedule(q+"x", "b", later, 3))
		list := func(query string) object {
			a := send(t, b, header, "GET", timersPath+"/"+url.PathEscape(q)+query, "")
			require.Equal(t, http.StatusOK, a.Status, a)
			return a.Object(t)
		}
		page := list("?limit=2")
		rows := rowsOf(t, page)
		require.Equal(t, []any{"B", "a/1"}, column(rows, "timerKey"), "by bytes")
		require.Equal(t, object{"truncated": true, "nextAfter": "a/1"}, part(page, "truncated", "nextAfter"))
		require.NotContains(t, rows[0], "payload")
		require.NotContains(t, rows[0], "found")
		require.Equal(t, "txn-B", rows[0]["txn"])
		page = list("?limit=2&after=a%2F1")
		require.Equal(t, []any{"c"}, column(rowsOf(t, page), "timerKey"))
		require.Equal(t, object{"truncated": false, "nextAfter": nil}, part(page, "truncated", "nextAfter"))
		for _, query := range []string{"", "?limit=all", "?mode=list", "?limit=1000000", "?limit=3&after="} {
			require.Len(t, rowsOf(t, list(query)), 3, query)
		}
		require.Len(t, rowsOf(t, list("?limit=0")), 1, "clamped")
		require.Equal(t, object{"count": 1.0}, list("?mode=count&prefix=a%2F"))
		require.Empty(t, rowsOf(t, send(t, b, header, "GET", timersPath+"/nobody", "").Object(t)))
	})
}

func TestTimersClientRawRequests(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	a := b.Post(t, timersPath, `[`+mustJSON(t, schedule(q, "k", later, 1))+`]`)
	require.Equal(t, "scheduled", a.Object(t)["results"].([]any)[0].(object)["status"], a)
	for _, body := range []string{`[]`, `{"operations":[]}`} {
		require.JSONEq(t, `{"results":[]}`, string(b.Post(t, timersPath, body).Body))
	}
	many := make([]object, 256)
	for i := range many {
		many[i] = schedule(q, fmt.Sprint(i), later, i)
	}
	for i, r := range timers(t, b, asJS(), many...) {
		require.Equal(t, fmt.Sprint(i), r["timerKey"])
	}
}

func TestTimersRefusals(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	change := func(more ...any) string { return mustJSON(t, []object{schedule(q, "k", later, 1, more...)}) }
	without := func(name string) string {
		op := schedule(q, "k", later, 1)
		delete(op, name)
		return mustJSON(t, []object{op})
	}
	many := slices.Repeat([]object{cancel(q, "k")}, 257)
	for _, c := range []struct {
		body         string
		status       int
		code, reason string // no reason: whatever the procedure says, which begins with QTIMER
	}{
		{``, 400, "timers_bad_request", "timers_bad_body"},
		{`{`, 400, "timers_bad_request", "timers_bad_body"},
		{`[1]`, 400, "timers_bad_request", "timers_bad_op"},
		{mustJSON(t, many), 400, "timers_bad_request", "timers_too_many_ops"},
		{change("_messageId", "x"), 400, "timers_bad_request", "timers_server_owned_field"},
		{change("_anything", nil), 400, "timers_bad_request", "timers_server_owned_field"},
		{without("queue"), 400, "timers_bad_request", "timers_queue_required"},
		{without("delayMs"), 400, "timers_bad_request", "timers_delay_required"},
		{change("delayMs", "5"), 400, "timers_bad_request", "timers_delay_required"},
		{without("payload"), 400, "timers_bad_request", "timers_payload_required"},
		{change("payload", "{}"), 400, "timers_bad_request", "timers_payload_not_base64"},
		{change("delayMs", 7776000001), 403, "timer_horizon_exceeded", "timers_horizon"},
		{change("payload", base64.StdEncoding.EncodeToString(make([]byte, 1<<20+1))), 413, "payload_too_large", "timers_payload_too_large"},
		{without("txn"), 400, "timers_bad_request", ""},
		{without("timerKey"), 400, "timers_bad_request", ""},
		{change("partition", ""), 400, "timers_bad_request", ""},
		{change("deliverAt", "2030-01-01T00:00:00Z"), 400, "timers_bad_request", ""},
		{change("delaySeconds", 1), 400, "timers_bad_request", ""},
		{change("producerSub", "me"), 400, "timers_bad_request", ""},
		{change("messageId", "me"), 400, "timers_bad_request", ""},
		{mustJSON(t, []object{cancel(q, "k"), cancel(q, "k")}), 400, "timers_bad_request", ""},
		{mustJSON(t, []object{{"op": "postpone", "queue": q, "timerKey": "k"}}), 400, "timers_bad_request", ""},
	} {
		a := b.Post(t, timersPath, c.body)
		if c.reason != "" {
			require.Equal(t, c.status, a.Status, "%.200s: %s", c.body, a)
			requireRefusal(t, a, c.status, c.code, c.reason)
			continue
		}
		require.Equal(t, []any{c.status, c.code}, []any{a.Status, a.Object(t)["error"]}, "%.200s: %s", c.body, a)
		require.True(t, strings.HasPrefix(a.Object(t)["reason"].(string), "QTIMER"), a)
	}
	require.Zero(t, harness.Value[int](t, b.DB, `SELECT count(*) FROM queen.log_timers WHERE queue = $1`, q), "nothing is stored")

	timers(t, b, asJS(), schedule(q, "far", 7776000000, 1))
	timers(t, b, asJS(), schedule(q, "large", later, 1, "payload", base64.StdEncoding.EncodeToString(make([]byte, 1<<20))))
	a := b.Get(t, timersPath+"/"+q+"?mode=other")
	require.Equal(t, http.StatusBadRequest, a.Status, a)
	require.Contains(t, string(a.Body), "timers_read_mode_unknown")
	for _, query := range []string{"", "&prefix=", "&prefix=%00", "&prefix=" + strings.Repeat("p", 129), "&prefix=k&limit=1", "&prefix=k&after=a"} {
		a := b.Get(t, timersPath+"/"+q+"?mode=count"+query)
		require.Equal(t, http.StatusBadRequest, a.Status, a)
		require.Contains(t, string(a.Body), `"timers_count_`, query)
	}
}

// arrived polls as the suites do, until so many messages have come, and acknowledges
// them.
func arrived(t *testing.T, b *harness.Broker, q string, n int) []harness.Message {
	t.Helper()
	var got []harness.Message
	harness.Eventually(t, arrival, "the messages arrive", func() bool {
		p, err := b.TryPop(t.Context(), harness.PopPath(q, "batch=100&wait=false&autoAck=true"))
		require.NoError(t, err)
		got = append(got, p.Messages...)
		return len(got) >= n
	})
	require.Len(t, got, n)
	return got
}

// TestTimersClientArrive shares one sweeper among what waits for deliveries.
func TestTimersClientArrive(t *testing.T) {
	t.Parallel()
	b := harness.Shared(t)
	harness.StartSweeper(t, b.DB)
	t.Run("as what was promised", func(t *testing.T) {
		eachClient(t, func(t *testing.T, b *harness.Broker, q string, header []string, escape func(string) string) {
			data := object{"order": 7.0, "list": []any{nil, "é<&>"}}
			r := timers(t, b, header, schedule(q, "k/1", 50, data, "partition", "lane"))[0]
			m := arrived(t, b, q, 1)[0]
			require.Equal(t, []any{r["messageId"], r["txn"], "lane"}, []any{m.ID, m.TransactionID, m.Partition})
			require.JSONEq(t, mustJSON(t, data), string(m.Data))
			require.Nil(t, m.ProducerSub)
			require.Nil(t, m.TraceID)
			require.False(t, requireInstant(t, m.CreatedAt).Before(requireInstant(t, r["deliverAt"]).Truncate(time.Millisecond)), "deliverAt is a floor")
			a := send(t, b, header, "GET", timerPath(q, "k/1", escape), "")
			require.Equal(t, false, a.Object(t)["found"])
			a = send(t, b, header, "DELETE", timerPath(q, "k/1", escape)+"?txn=x", "")
			require.Equal(t, "absent", a.Object(t)["status"], "a delivered timer looks like none")
			require.Equal(t, "scheduled", timers(t, b, header, schedule(q, "k/1", later, 1))[0]["status"])
		})
	})
	t.Run("late ones by the next sweep", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		r := timers(t, b, asJS(), schedule(q, "a", -5000, 1), schedule(q, "b", 0, 2), schedule(q, "c", -1, 3))
		require.ElementsMatch(t, column(r, "messageId"), messageIDs(arrived(t, b, q, 3)))
	})
	t.Run("only the last of several schedules of a key", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		timers(t, b, asJS(), schedule(q, "k", later, 1))
		r := timers(t, b, asJS(), schedule(q, "k", 0, 2, "txn", "second"))
		m := arrived(t, b, q, 1)[0]
		require.Equal(t, []any{r[0]["messageId"], "second", "2"}, []any{m.ID, m.TransactionID, string(m.Data)})
		// Nothing keeps a transaction id from being scheduled again.
		r = timers(t, b, asJS(), schedule(q, "k", 0, 3, "txn", "second"))
		require.Equal(t, r[0]["messageId"], arrived(t, b, q, 1)[0].ID)
	})
	t.Run("never once cancelled", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		timers(t, b, asJS(), schedule(q, "no", 2000, 1), schedule(q, "yes", 2100, 2))
		require.Equal(t, "cancelled", timers(t, b, asJS(), cancel(q, "no"))[0]["status"])
		require.Equal(t, []string{"2"}, []string{string(arrived(t, b, q, 1)[0].Data)})
		require.EqualValues(t, 1, lastOffsets(t, b, q)+1)
	})
	t.Run("at a parked pop", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		for _, path := range []string{
			harness.PopPath(q, "wait=true&timeout=30000&autoAck=true"), harness.PopPartitionPath(q, "lane", "wait=true&timeout=30000&autoAck=true"),
		} {
			popped := make(chan harness.Popped, 1)
			go func() {
				p, err := b.TryPop(t.Context(), path)
				if err != nil {
					t.Error(err)
				}
				popped <- p
			}()
			timers(t, b, asJS(), schedule(q, "k", 300, 1, "partition", "lane"))
			require.Len(t, (<-popped).Messages, 1)
		}
	})
	t.Run("in the order of their instants within a lane", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		ops := make([]object, 60)
		for i := range ops {
			ops[(i*37)%60] = schedule(q, fmt.Sprintf("k%02d", (i*11)%60), 1000+i*10, i)
		}
		timers(t, b, asJS(), ops...)
		got := arrived(t, b, q, 60)
		payloads := make([]string, len(got))
		for i, m := range got {
			payloads[i] = string(m.Data)
		}
		require.Equal(t, numbers(0, 60), payloads)
	})
	t.Run("from a transaction", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		a := bundle(t, b, object{"operations": []any{}, "timers": []any{schedule(q, "k", 0, 1)}})
		require.Equal(t, true, a["success"], a)
		m := arrived(t, b, q, 1)[0]
		require.Equal(t, a["results"].([]any)[0].(object)["messageId"], m.ID)
	})
	t.Run("of anything that is JSON", func(t *testing.T) {
		t.Parallel()
		b, q := shared(t)
		texts := []string{`null`, `{}`, `"` + repeat(100_000) + `"`, ` [ 1.50 , "\u0000\ud800" ] `, `1e400`}
		var ops []object
		for i, text := range texts {
			ops = append(ops, schedule(q, fmt.Sprint(i), i, nil, "payload", base64.StdEncoding.EncodeToString([]byte(text))))
		}
		timers(t, b, asJS(), ops...)
		for i, m := range arrived(t, b, q, len(texts)) {
			require.Equal(t, strings.TrimSpace(texts[i]), strings.TrimSpace(string(m.Data)), "bytes are kept")
		}
	})
}

func messageIDs(messages []harness.Message) []any {
	out := make([]any, len(messages))
	for i, m := range messages {
		out[i] = m.ID
	}
	return out
}

// lastOffsets sums up how many messages the lanes of a queue have, less one for each
// lane.
func lastOffsets(t *testing.T, b *harness.Broker, q string) int64 {
	t.Helper()
	return harness.Value[int64](t, b.DB, `SELECT COALESCE(sum(p.last_offset), -1)::bigint FROM queen.log_partitions AS p
		JOIN queen.queues AS q ON q.id = p.queue_id WHERE q.name = $1`, q)
}
