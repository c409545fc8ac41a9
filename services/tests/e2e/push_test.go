package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestPushAnswersOneVerdictPerItem(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	other := q + "-other"

	a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"items":[
		{"queue":%q,"payload":{"n":7},"transactionId":"inv-7"},
		{"queue":%q,"partition":"acct-9","payload":null},
		{"queue":%q,"payload":{"n":7},"transactionId":"inv-7"}]}`, q, other, q))

	require.Equal(t, http.StatusCreated, a.Status, a)
	require.Equal(t, "application/json", strings.Split(a.Header.Get("Content-Type"), ";")[0])
	items := a.Objects(t)
	require.Len(t, items, 3)
	for i, item := range items {
		requireKeys(t, item, "index", "message_id", "transaction_id", "queueName", "status")
		require.InDelta(t, i, item["index"], 0)
		requireUUIDv7(t, item["message_id"].(string))
	}
	require.Equal(t, []any{q, "inv-7", "queued"}, []any{items[0]["queueName"], items[0]["transaction_id"], items[0]["status"]})
	require.Equal(t, []any{other, items[1]["message_id"], "queued"}, []any{items[1]["queueName"], items[1]["transaction_id"], items[1]["status"]},
		"a minted transaction id is the message id")
	require.Equal(t, []any{"duplicate", items[0]["message_id"]}, []any{items[2]["status"], items[2]["message_id"]})
}

func TestPushOfNothingAnswersAnEmptyArray(t *testing.T) {
	t.Parallel()
	b, _ := shared(t)
	a := b.Post(t, "/api/v1/push", `{"items":[]}`)
	require.Equal(t, http.StatusCreated, a.Status)
	require.Equal(t, "[]", strings.TrimSpace(string(a.Body)))
}

func TestPushTreatsEmptyNamesAsAbsent(t *testing.T) {
	t.Parallel()
	for _, member := range []string{``, `,"partition":""`, `,"partition":null`, `,"partition":"Default"`} {
		t.Run("partition"+member, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":1%s}]}`, q, member))
			require.Equal(t, http.StatusCreated, a.Status, a)
			require.Equal(t, "Default", b.Pop(t, q, "").Partition)
		})
	}
	for _, member := range []string{``, `,"transactionId":""`, `,"transactionId":null`} {
		t.Run("transactionId"+member, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			item := fmt.Sprintf(`{"queue":%q,"payload":1%s}`, q, member)
			a := b.Post(t, "/api/v1/push", `{"items":[`+item+`,`+item+`]}`)
			require.Equal(t, http.StatusCreated, a.Status, a)
			for _, r := range a.Objects(t) {
				require.Equal(t, "queued", r["status"], "ids that nobody chose never collide")
				require.Equal(t, r["message_id"], r["transaction_id"])
			}
		})
	}
}

func TestPayloadBytesComeBackUnchanged(t *testing.T) {
	t.Parallel()
	payloads := map[string]string{
		"null":                   `null`,
		"empty object":           `{}`,
		"empty array":            `[]`,
		"empty text":             `""`,
		"true":                   `true`,
		"number beyond 64 bits":  `123456789012345678901234567890.0000000000000000000000001e-7`,
		"number beyond a double": `1e999`,
		"negative zero":          `-0`,
		"trailing zeros":         `1.5000`,
		"inner white space":      "{ \"a\" :\t1 ,\n \"b\":[ 1,2 ] }",
		"repeated keys":          `{"a":1,"a":2}`,
		"escaped text":           `"\u0061\/\\\"\n\u00e9\ud83d\ude00"`,
		"NUL escape":             `"a\u0000b"`,
		"lone surrogate":         `"\ud800"`,
		"raw UTF-8":              `"żółć 日本語 🐝"`,
		"markup":                 `"<a href=\"x\">&amp;</a>"`,
		"raw line separator":     "\"\u2028\u2029\"",
		"queue words inside":     `{"items":[{"queue":"x","payload":1}],"payload":{"payload":null}}`,
		"deep but allowed":       strings.Repeat("[", 500) + strings.Repeat("]", 500),
		"text of 1 MB":           `"` + repeat(1<<20) + `"`,
		"array of 2.4 MB":        `[` + strings.Repeat(`{"id":12345,"tags":["a","b"],"on":true},`, 60000) + `null]`,
	}
	for name, payload := range payloads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":%s}]}`, q, payload))
			require.Equal(t, http.StatusCreated, a.Status, a)
			require.Equal(t, "queued", a.Objects(t)[0]["status"], a)

			p := b.Pop(t, q, "batch=10")
			require.Len(t, p.Messages, 1)
			if got := string(p.Messages[0].Data); got != payload { // megabytes: no diff
				require.Fail(t, "other bytes came back", "sent %.200s\ngot  %.200s", payload, got)
			}
			require.Positive(t, bytes.Count(p.Body, []byte(payload)), "spliced without any change")
		})
	}
}

func TestPushIgnoresWhatItDoesNotRead(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"future":{"x":[1]},"items":[{
		"queue":%q,"payload":1,"traceId":"not a uuid","producerSub":"forged","messageId":7,"data":"ignored"},{
		"queue":%q,"payload":2,"traceId":"2f1b2c3d-0000-4000-8000-000000000001"},{
		"queue":%q,"payload":3,"traceId":null}]}`, q, q, q))
	require.Equal(t, http.StatusCreated, a.Status, a)
	p := b.Pop(t, q, "")
	require.Equal(t, []string{"1", "2", "3"}, p.Payloads())
	for _, m := range p.Messages {
		require.Nil(t, m.TraceID, "this route stores no trace id")
		require.Nil(t, m.ProducerSub, "without authentication nobody is the producer")
	}
}

func TestPushNeverLooksAtTheContentType(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, contentType := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"} {
		a, err := b.Call(t.Context(), http.MethodPost, "/api/v1/push",
			fmt.Appendf(nil, `{"items":[{"queue":%q,"payload":1}]}`, q), "Content-Type", contentType)
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, a.Status, "%q: %s", contentType, a)
	}
	require.Len(t, b.Pop(t, q, "").Messages, 4)
}

func TestPushKeepsTheOrderOfOneRequest(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	var items []harness.Item
	for i := range 300 {
		items = append(items, harness.Item{Queue: q, Partition: lanes(3)[i%3], Payload: i})
	}
	b.PushQueued(t, items...)
	for lane := range 3 {
		p := b.PopPartition(t, q, lanes(3)[lane], "batch=1000")
		var want []string
		for i := lane; i < 300; i += 3 {
			want = append(want, fmt.Sprint(i))
		}
		require.Equal(t, want, p.Payloads())
		for _, m := range p.Messages {
			require.Equal(t, p.Messages[0].CreatedAt, m.CreatedAt, "one segment, one instant")
		}
	}
}

func TestPushTakesThousandsOfItemsAtOnce(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	ids := b.PushTogether(t, q, "", 2000)
	seen := map[string]bool{}
	for _, id := range ids {
		requireUUIDv7(t, id)
		seen[id] = true
	}
	require.Len(t, seen, 2000)
	require.Equal(t, numbers(0, 2000), b.Pop(t, q, "batch=5000").Payloads())
}

func TestPushIsVisibleToTheNextPop(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b = b.Each[0] // each broker sees its own writes at once
	for i := range 40 {
		name := fmt.Sprintf("%s-%d", q, i%20) // first half: brand-new queues
		b.PushQueued(t, harness.Item{Queue: name, Payload: i})
		p, err := b.TryPop(t.Context(), harness.PopPath(name, "wait=false"))
		require.NoError(t, err)
		require.Equal(t, []string{fmt.Sprint(i)}, p.Payloads())
		b.AckOK(t, "", p.Acks("completed")...)
		b.RequireNone(t, harness.PopPath(name, "wait=false"))
	}
}

func TestNamesAndIDsMayHoldAnyText(t *testing.T) {
	t.Parallel()
	names := map[string]string{
		"markup":       `a&b<c>d`,
		"quotes":       `"quoted" 'single'`,
		"slashes":      `back\slash/and/slash`,
		"spaces":       ` leading and trailing `,
		"percent":      `100%25 %2F`,
		"plus":         `a+b c`,
		"query":        `a?b=c#d;e`,
		"dots":         `..`,
		"letters":      `żółć-ÄÖÜ-日本語-🐝`,
		"colon and at": `tenant:user@host|x`,
	}
	for name, text := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q := shared(t)
			queue := q + " " + text
			id := b.PushQueued(t, harness.Item{Queue: queue, Partition: text, TransactionID: text, Payload: text})[0]
			require.Equal(t, text, id)
			p := b.PopPartition(t, queue, text, "consumerGroup=g")
			require.Len(t, p.Messages, 1, "%s", p.Answer)
			require.Equal(t, []string{queue, text, text}, []string{p.Queue, p.Partition, p.Messages[0].TransactionID})
			b.AckOK(t, "g", p.Acks("completed")...)
			b.RequireNone(t, harness.PopPartitionPath(queue, text, "consumerGroup=g"))
			require.Equal(t, "duplicate", b.Push(t, harness.Item{Queue: queue, Partition: text, TransactionID: text, Payload: 1})[0].Status)
			require.Equal(t, []string{text}, b.Pop(t, queue, "").IDs(), "queue mode is its own cursor")
		})
	}
}

func TestEscapedAndRawSpellingsOfANameAreOneName(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	escaped := fmt.Sprintf(`{"items":[{"queue":"%s\u0026\u003cx\u003e","partition":"p\u0026\/","transactionId":"\u0074\u0026","payload":1}]}`, q)
	require.Equal(t, "queued", b.Post(t, "/api/v1/push", escaped).Objects(t)[0]["status"])
	r := b.Push(t, harness.Item{Queue: q + "&<x>", Partition: "p&/", TransactionID: "t&", Payload: 2})
	require.Equal(t, "duplicate", r[0].Status)
}

func TestOneOddItemDoesNotRejectItsNeighbours(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q, Payload: 1}, harness.Item{Queue: q, TransactionID: `<&>"\/`, Payload: 2},
		harness.Item{Queue: q, Partition: "日本/語", Payload: 3}, harness.Item{Queue: q, Payload: 4})
	require.Len(t, b.Pop(t, q, "partitions=5").Messages, 4)
}

func TestLongestNamesAreAccepted(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	queue := q + strings.Repeat("ż", 255-len(q)) // characters, not bytes
	partition, id := strings.Repeat("p", 1024), strings.Repeat("t", 1024)
	b.PushQueued(t, harness.Item{Queue: queue, Partition: partition, TransactionID: id, Payload: 1})
	p := b.PopPartition(t, queue, partition, "consumerGroup="+strings.Repeat("g", 1024))
	require.Equal(t, []string{id}, p.IDs())
	b.AckOK(t, strings.Repeat("g", 1024), p.Acks("completed")...)
}

func TestBodyOverTheCapAnswers413(t *testing.T) {
	t.Parallel()
	b := harness.Start(t, "QUEEN_MAX_BODY_BYTES=100000")
	q := queueName(t)
	body := func(n int) []byte {
		head := fmt.Sprintf(`{"items":[{"queue":%q,"payload":"`, q)
		return []byte(head + strings.Repeat("x", n-len(head)-4) + `"}]}`)
	}
	a, err := b.Call(t.Context(), http.MethodPost, "/api/v1/push", body(100000))
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.Status, a)

	a, err = b.Call(t.Context(), http.MethodPost, "/api/v1/push", body(100001))
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestEntityTooLarge, a.Status, a)
	require.NotEmpty(t, a.ErrorText(t))

	require.Equal(t, http.StatusRequestEntityTooLarge, chunkedPost(t, b.URL+"/api/v1/push", body(100001)), "no declared length")
	require.Equal(t, http.StatusCreated, chunkedPost(t, b.URL+"/api/v1/push", body(100000)))
}

func TestFirstPushProvisionsTheQueue(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	cases := map[string][2]string{ // namespace and task
		q:                       {q, ""},
		q + ".email":            {q, "email"},
		q + ".email.high":       {q, "email"},
		q + "..high":            {q, ""},
		q + ".email.high.extra": {q, "email"},
	}
	for name, want := range cases {
		b.PushQueued(t, harness.Item{Queue: name, Payload: 1})
		var namespace, task string
		var lease, retries, window int
		b.DB.Row(t, `SELECT namespace, task, lease_time, retry_limit, dedup_window_seconds FROM queen.queues WHERE name = $1`,
			[]any{name}, []any{&namespace, &task, &lease, &retries, &window})
		require.Equal(t, want, [2]string{namespace, task}, name)
		require.Equal(t, []int{60, 3, 3600}, []int{lease, retries, window}, "column defaults")
	}
}

func TestStoredLogFollowsTheModel(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushTogether(t, q, "", 3)
	b.PushTogether(t, q, "", 2)
	pid := b.DB.PartitionID(t, q, "Default")
	rows, err := b.DB.Pool.Query(t.Context(), `
		SELECT s.base_offset, s.end_offset, octet_length(x.hashes), s.created_at = x.created_at, x.end_offset
		FROM queen.log_segments s JOIN queen.log_txns x USING (partition_id, base_offset)
		WHERE partition_id = $1 ORDER BY base_offset`, pid)
	require.NoError(t, err)
	defer rows.Close()
	var got [][4]int64
	for rows.Next() {
		var base, end, hashes, twin int64
		var same bool
		require.NoError(t, rows.Scan(&base, &end, &hashes, &same, &twin))
		require.True(t, same)
		got = append(got, [4]int64{base, end, hashes, twin})
	}
	require.NoError(t, rows.Err())
	require.Equal(t, [][4]int64{{0, 2, 48, 2}, {3, 4, 32, 4}}, got)
	require.Equal(t, int64(4), harness.Value[int64](t, b.DB, `SELECT last_offset FROM queen.log_partitions WHERE id = $1`, pid))
}

func TestHashesAreXXH3BigEndian(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushQueued(t, harness.Item{Queue: q, TransactionID: "inv-7", Payload: 1}, harness.Item{Queue: q, TransactionID: "a", Payload: 1})
	got := harness.Value[[]byte](t, b.DB, `SELECT hashes FROM queen.log_txns WHERE partition_id = $1`, b.DB.PartitionID(t, q, "Default"))
	require.Equal(t, hashes("inv-7", "a"), got)
}

func TestPushResultsStayAlignedAcrossLanes(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	var items []harness.Item
	for i := range 200 {
		items = append(items, harness.Item{Queue: fmt.Sprintf("%s-%d", q, i%7), Partition: lanes(11)[i%11],
			TransactionID: fmt.Sprintf("t-%d", i), Payload: i})
	}
	first := b.Push(t, items...)
	again := b.Push(t, items...)
	for i := range items {
		require.Equal(t, "queued", first[i].Status)
		require.Equal(t, items[i].TransactionID, first[i].TransactionID)
		require.Equal(t, "duplicate", again[i].Status)
		require.Equal(t, first[i].MessageID, again[i].MessageID)
	}
}

func TestPoppedMessageKeepsItsPushedIdentity(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	r := b.Push(t, harness.Item{Queue: q, TransactionID: "own", Payload: json.RawMessage(`1`)}, harness.Item{Queue: q, Payload: 2})
	p := b.Pop(t, q, "")
	require.Equal(t, []string{r[0].MessageID, r[1].MessageID}, []string{p.Messages[0].ID, p.Messages[1].ID})
	require.Equal(t, []string{"own", r[1].MessageID}, p.IDs())
}
