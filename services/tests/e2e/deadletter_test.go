package e2e_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

func TestDeadLetterRow(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"retryLimit":1}`)
	r := b.Push(t, harness.Item{Queue: q, Partition: "p", TransactionID: "bad", Payload: map[string]any{"n": 7}})[0]
	for range 2 {
		p := b.Pop(t, q, "consumerGroup=g")
		ack := p.Messages[0].Ack("failed")
		ack.Error = "no such account"
		b.AckOK(t, "g", ack)
	}

	a := b.Get(t, "/api/v1/dlq?queue="+q)
	require.Equal(t, http.StatusOK, a.Status)
	page := a.Object(t)
	requireKeys(t, page, "messages", "pagination", "total")
	require.Equal(t, map[string]any{"limit": 100.0, "offset": 0.0}, page["pagination"])
	require.InDelta(t, 1, page["total"], 0)
	row := page["messages"].([]any)[0].(map[string]any)
	requireKeys(t, row, "id", "transactionId", "partitionId", "queue", "partition", "consumerGroup", "errorMessage", "retryCount",
		"data", "producerSub", "createdAt", "failedAt")
	at, err := time.Parse(time.RFC3339, row["failedAt"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	require.Equal(t, row["failedAt"], row["createdAt"])
	delete(row, "failedAt")
	delete(row, "createdAt")
	delete(row, "id")
	require.Equal(t, map[string]any{
		"transactionId": "bad", "partitionId": b.DB.PartitionID(t, q, "p"), "queue": q, "partition": "p", "consumerGroup": "g",
		"errorMessage": "no such account", "retryCount": 1.0, "data": map[string]any{"n": 7.0}, "producerSub": nil,
	}, row)
	require.Equal(t, r.MessageID, harness.Value[string](t, b.DB, `SELECT message_id::text FROM queen.log_dlq WHERE partition_id = $1`,
		b.DB.PartitionID(t, q, "p")))
}

func TestDeadLetterReason(t *testing.T) {
	t.Parallel()
	named := func(m harness.Message, status, reason string) harness.Ack {
		a := m.Ack(status)
		a.Error = reason
		return a
	}
	cases := map[string]struct {
		acks func(p harness.Popped) []harness.Ack
		want string
	}{
		"the poison's own": {func(p harness.Popped) []harness.Ack {
			return []harness.Ack{named(p.Messages[2], "dlq", "other"), named(p.Messages[1], "dlq", "own"), named(p.Messages[0], "completed", "ok")}
		}, "own"},
		"else the first of the group": {func(p harness.Popped) []harness.Ack {
			return []harness.Ack{p.Messages[0].Ack("dlq"), named(p.Messages[1], "failed", "first"), named(p.Messages[2], "failed", "second")}
		}, "first"},
		"else a fixed text": {func(p harness.Popped) []harness.Ack { return []harness.Ack{p.Messages[0].Ack("dlq")} }, "Retries exhausted"},
		"any text": {func(p harness.Popped) []harness.Ack {
			return []harness.Ack{named(p.Messages[0], "dlq", "zażółć \"quoted\" \\ \n\t<b>&")}
		}, "zażółć \"quoted\" \\ \n\t<b>&"},
		"a long text": {func(p harness.Popped) []harness.Ack { return []harness.Ack{named(p.Messages[0], "dlq", repeat(50000))} }, repeat(50000)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, p := leased(t, 3, "")
			b.AckOK(t, "", c.acks(p)...)
			rows := b.DLQ(t, q, "")
			require.Len(t, rows, 1)
			require.Equal(t, c.want, rows[0].ErrorMessage)
		})
	}
}

func TestErrorOfAPlainNackIsNotStored(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, `{"retryLimit":1}`)
	ack := p.Messages[0].Ack("failed")
	ack.Error = "first attempt"
	b.AckOK(t, "", ack)
	b.AckOK(t, "", b.Pop(t, q, "").Acks("failed")...)
	require.Equal(t, "Retries exhausted", b.DLQ(t, q, "")[0].ErrorMessage)
}

func TestDLQOnFirstDeliveryIsFiledAtOnce(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 1, "")
	r := b.AckOne(t, p.Messages[0].Ack("dlq"))
	require.True(t, r.DLQ)
	rows := b.DLQ(t, q, "")
	require.Len(t, rows, 1)
	require.Zero(t, rows[0].RetryCount)
	b.RequireNone(t, harness.PopPath(q, ""))
	b.PushEach(t, q, "p", 1)
	require.Len(t, b.Pop(t, q, "").Messages, 1, "the lane goes on")
}

func TestTailOfADeadLetteredBatchIsDeliverableAtOnce(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 5, "")
	b.AckOK(t, "", p.Messages[0].Ack("completed"), p.Messages[1].Ack("dlq"), p.Messages[4].Ack("completed"))
	p = b.Pop(t, q, "batch=5")
	require.Equal(t, numbers(2, 5), p.Payloads())
	require.Equal(t, 1, p.Messages[0].DeliveryAttempt)
	require.Equal(t, int64(1), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestLeaselessDeadLetterUsesTheHolder(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"dlq", "failed"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			b, q, p := leased(t, 2, `{"retryLimit":0}`)
			ack := p.Messages[0].Ack(status)
			ack.LeaseID = ""
			require.Equal(t, verdict{success: true, released: true, dlq: true}, verdicts(b.Ack(t, "", ack))[0])
			require.Len(t, b.DLQ(t, q, ""), 1)
			require.Equal(t, numbers(1, 2), b.Pop(t, q, "").Payloads())
		})
	}
}

func TestDeadLetterOfAGoneSegmentIsRejected(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 2, "")
	b.DB.Exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1`, p.PartitionID)
	r := b.AckOne(t, p.Messages[0].Ack("dlq"))
	require.False(t, r.Success)
	require.Equal(t, "dlq rejected", r.ErrorText())
	require.False(t, r.DLQ)
	require.Equal(t, int64(-1), b.DB.Committed(t, q, "p", harness.QueueMode))
	require.Empty(t, b.DLQ(t, q, ""))
}

func TestDeadLetterTakesAnyPayload(t *testing.T) {
	t.Parallel()
	plain := map[string]string{
		"null": `null`, "text": `"x"`, "number": `-12.5e3`, "array": `[1,{"a":[]}]`, "empty": `{}`, "unicode": `"日本 🐝"`,
	}
	odd := map[string]string{ // what jsonb refuses
		"NUL": `{"a":"x\u0000y"}`, "lone surrogate": `"\ud800 tail"`, "huge exponent": `1e999999`, "very deep": strings.Repeat("[", 511) + strings.Repeat("]", 511),
	}
	file := func(t *testing.T, payload string) (listed, stored string) {
		t.Helper()
		b, q := shared(t)
		a := b.Post(t, "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":%s},{"queue":%q,"payload":"next"}]}`, q, payload, q))
		require.Equal(t, http.StatusCreated, a.Status, a)
		p := b.Pop(t, q, "")
		require.True(t, b.AckOK(t, "", p.Messages[0].Ack("dlq"))[0].DLQ)
		require.Equal(t, []string{`"next"`}, b.Pop(t, q, "").Payloads())
		rows := b.DLQ(t, q, "")
		require.Len(t, rows, 1)
		return string(rows[0].Data), harness.Value[string](t, b.DB, `SELECT payload::text FROM queen.log_dlq WHERE partition_id = $1`, p.PartitionID)
	}
	for name, payload := range plain {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listed, stored := file(t, payload)
			require.JSONEq(t, payload, listed)
			require.JSONEq(t, payload, stored)
		})
	}
	for name, payload := range odd {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listed, stored := file(t, payload)
			require.JSONEq(t, stored, listed)
			if stored != payload { // jsonb takes deep nesting
				require.JSONEq(t, `{"$raw":"`+base64.StdEncoding.EncodeToString([]byte(payload))+`"}`, stored)
			}
		})
	}
}

func TestDLQListing(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	for _, group := range []string{"a", "b"} {
		for _, lane := range []string{"p1", "p2"} {
			b.PushTogether(t, q, lane, 2)
			for range 2 {
				p := b.PopPartition(t, q, lane, "batch=1&consumerGroup="+group)
				b.AckOK(t, group, p.Acks("dlq")...)
			}
		}
	}
	count := func(more string) int { return len(b.DLQ(t, q, more)) }
	require.Equal(t, 8, count(""))
	require.Equal(t, 4, count("&consumerGroup=a"))
	require.Zero(t, count("&consumerGroup=c"))
	require.Equal(t, 3, count("&limit=3"))
	require.Equal(t, 2, count("&limit=3&offset=6"))
	require.Zero(t, count("&offset=100"))
	require.Contains(t, []int{4, 8}, count("&partition=p1"), "tolerated; filtering is expected by its name")
	require.Equal(t, 8, count("&from="+url.QueryEscape("2001-01-01T00:00:00Z")+"&to="+url.QueryEscape("2999-01-01T00:00:00+01:00")))
	require.Equal(t, 8, count("&from=&to=&consumerGroup=&future=1"))

	rows := b.DLQ(t, q, "")
	for i := 1; i < len(rows); i++ {
		require.GreaterOrEqual(t, rows[i-1].FailedAt, rows[i].FailedAt, "newest first")
	}
	var paged []harness.DeadLetter
	for offset := range 8 {
		paged = append(paged, b.DLQ(t, q, fmt.Sprintf("&limit=1&offset=%d", offset))...)
	}
	require.Equal(t, rows, paged, "pages add up to the whole")

	require.Empty(t, b.DLQ(t, q+"-unknown", "&from=2001-01-01T00:00:00Z&to=2999-01-01T00:00:00Z&offset=0"))
	a := b.Get(t, "/api/v1/dlq?queue="+q+"-unknown")
	require.JSONEq(t, `{"messages":[],"pagination":{"limit":100,"offset":0},"total":0}`, string(a.Body))
}

// A page is bounded by what it takes to show, however well its payloads compress.
func TestAPageOfDeadLettersEndsWhereItIsFull(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	const letters = 12 // of which eight fill a page
	for range letters {
		b.PushQueued(t, harness.Item{Queue: q, Partition: "p", Payload: strings.Repeat("ab", 500_000)})
	}
	for range letters {
		b.AckOK(t, "", b.PopPartition(t, q, "p", "batch=1").Acks("dlq")...)
	}
	first := b.Get(t, "/api/v1/dlq?limit=1000&queue="+q).Object(t)
	require.EqualValues(t, 8, first["total"])
	require.Len(t, first["messages"], 8)
	rest := b.Get(t, "/api/v1/dlq?limit=1000&queue="+q+"&after="+first["next"].(string)).Object(t)
	require.EqualValues(t, letters-8, rest["total"])
	require.NotContains(t, rest, "next")
}

func TestDeadLetterLeavesOtherGroupsAlone(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.PushEach(t, q, "p", 2)
	p := b.Pop(t, q, "batch=1&consumerGroup=a")
	b.AckOK(t, "a", p.Acks("dlq")...)
	require.Equal(t, numbers(0, 2), b.Pop(t, q, "consumerGroup=b").Payloads())
	require.Equal(t, numbers(1, 2), b.Pop(t, q, "consumerGroup=a").Payloads())
}

func TestDeadLetterIsFiledOnceUnderRepeats(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 2, "")
	require.True(t, b.AckOne(t, p.Messages[0].Ack("dlq")).DLQ)
	require.False(t, b.AckOne(t, p.Messages[0].Ack("dlq")).Success)
	again := p.Messages[0].Ack("dlq")
	again.LeaseID = ""
	require.Equal(t, committedText, b.AckOne(t, again).ErrorText())
	require.Len(t, b.DLQ(t, q, ""), 1)
}
