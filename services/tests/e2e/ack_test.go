package e2e_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// leased is a queue with n messages, all of them leased to one consumer.
func leased(t *testing.T, n int, options string) (*harness.Broker, string, harness.Popped) {
	t.Helper()
	b, q := shared(t)
	if options != "" {
		b.Configure(t, q, options)
	}
	b.PushTogether(t, q, "p", n)
	p := b.Pop(t, q, fmt.Sprintf("batch=%d", n))
	require.Len(t, p.Messages, n)
	return b, q, p
}

// verdict is what an ack item reports, without its identity.
type verdict struct {
	success, released, dlq, noop bool
	err                          string
}

func verdicts(results []harness.AckResult) []verdict {
	out := make([]verdict, len(results))
	for i, r := range results {
		out[i] = verdict{r.Success, r.LeaseReleased, r.DLQ, r.Noop, r.ErrorText()}
	}
	return out
}

// statusesOf acknowledges message i with status i; "" leaves it out.
func statusesOf(p harness.Popped, statuses ...string) []harness.Ack {
	var acks []harness.Ack
	for i, s := range statuses {
		if s != "" {
			acks = append(acks, p.Messages[i].Ack(s))
		}
	}
	return acks
}

func all(n int, v verdict) []verdict {
	out := make([]verdict, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func TestAckAnswersTheDocumentedShape(t *testing.T) {
	t.Parallel()
	b, _, p := leased(t, 2, "")
	m := p.Messages[0]
	a := b.Post(t, "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, m.TransactionID, m.PartitionID, m.LeaseID))
	require.Equal(t, http.StatusOK, a.Status)
	items := a.Objects(t)
	require.Len(t, items, 1)
	delete(items[0], "noop") // may be left out where it does not apply
	require.Equal(t, map[string]any{"index": 0.0, "transactionId": m.TransactionID, "success": true, "error": nil,
		"leaseReleased": false, "dlq": false}, items[0])

	a = b.Post(t, "/api/v1/ack/batch", `{"acknowledgments":[]}`)
	require.Equal(t, http.StatusOK, a.Status)
	require.JSONEq(t, `[]`, string(a.Body))
}

// TestAckBranches acknowledges parts of a batch of five and checks the verdicts,
// where the cursor stands, whether the lease survives, the budget spent, and
// what is delivered next.
func TestAckBranches(t *testing.T) {
	t.Parallel()
	ok := verdict{success: true}
	released := verdict{success: true, released: true}
	dead := verdict{success: true, released: true, dlq: true}
	// Messages that a dead-lettered one above them took along were not consumed.
	skipped := map[string]int64{"dlq alone passes those below it": 2, "dlq last": 3}
	cases := map[string]struct {
		options   string
		statuses  []string
		want      []verdict
		committed int64
		held      bool // the lease survives
		retries   int
		next      []string // payloads after whatever lease is left has expired
		dlq       []string
	}{
		"all completed":                   {"", []string{"completed", "completed", "completed", "completed", "completed"}, all(5, released), 4, false, 0, nil, nil},
		"only the last":                   {"", []string{"", "", "", "", "completed"}, all(1, released), 4, false, 0, nil, nil},
		"only the middle":                 {"", []string{"", "", "completed"}, all(1, ok), 2, true, 0, []string{"3", "4"}, nil},
		"only the first":                  {"", []string{"completed"}, all(1, ok), 0, true, 0, numbers(1, 5), nil},
		"first and last":                  {"", []string{"completed", "", "", "", "completed"}, all(2, released), 4, false, 0, nil, nil},
		"retry of all":                    {"", []string{"retry", "retry", "retry", "retry", "retry"}, all(5, released), -1, false, 0, numbers(0, 5), nil},
		"failed for all charges one":      {"", []string{"failed", "failed", "failed", "failed", "failed"}, all(5, released), -1, false, 1, numbers(0, 5), nil},
		"ok failed ok ok ok":              {"", []string{"completed", "failed", "completed", "completed", "completed"}, all(5, released), 0, false, 1, numbers(1, 5), nil},
		"ok retry ok ok ok":               {"", []string{"completed", "retry", "completed", "completed", "completed"}, all(5, released), 0, false, 0, numbers(1, 5), nil},
		"ok - - failed":                   {"", []string{"completed", "", "", "failed"}, all(2, released), 0, false, 1, numbers(1, 5), nil},
		"- - ok failed implies a done":    {"", []string{"", "", "completed", "failed"}, all(2, released), 2, false, 1, numbers(3, 5), nil},
		"failed below a retry":            {"", []string{"", "failed", "retry"}, all(2, released), -1, false, 1, numbers(0, 5), nil},
		"retry below a failed":            {"", []string{"", "retry", "failed"}, all(2, released), -1, false, 0, numbers(0, 5), nil},
		"failed last":                     {"", []string{"completed", "completed", "completed", "completed", "failed"}, all(5, released), 3, false, 1, numbers(4, 5), nil},
		"dlq first":                       {"", []string{"dlq"}, all(1, dead), 0, false, 0, numbers(1, 5), []string{"0"}},
		"dlq in the middle":               {"", []string{"completed", "completed", "dlq", "completed", "completed"}, all(5, dead), 2, false, 0, numbers(3, 5), []string{"2"}},
		"dlq alone passes those below it": {"", []string{"", "", "dlq"}, all(1, dead), 2, false, 0, numbers(3, 5), []string{"2"}},
		"dlq last":                        {"", []string{"completed", "", "", "", "dlq"}, all(2, dead), 4, false, 0, nil, []string{"4"}},
		"dlq of all files the head":       {"", []string{"dlq", "dlq", "dlq", "dlq", "dlq"}, all(5, dead), 0, false, 0, numbers(1, 5), []string{"0"}},
		"failed below a dlq":              {"", []string{"failed", "dlq"}, all(2, released), -1, false, 1, numbers(0, 5), nil},
		"dlq below a failed":              {"", []string{"dlq", "failed"}, all(2, dead), 0, false, 0, numbers(1, 5), []string{"0"}},
		"exhausted":                       {`{"retryLimit":0}`, []string{"completed", "failed", "completed"}, all(3, dead), 1, false, 0, numbers(2, 5), []string{"1"}},
		"exhausted, retry is free":        {`{"retryLimit":0}`, []string{"completed", "retry"}, all(2, released), 0, false, 0, numbers(1, 5), nil},
		"exhausted, one flag is on":       {`{"retryLimit":0,"deadLetterQueue":false}`, []string{"failed"}, all(1, dead), 0, false, 0, numbers(1, 5), []string{"0"}},
		"exhausted, the other is on":      {`{"retryLimit":0,"dlqAfterMaxRetries":false}`, []string{"failed"}, all(1, dead), 0, false, 0, numbers(1, 5), []string{"0"}},
		"exhausted, both off":             {`{"retryLimit":0,"dlqAfterMaxRetries":false,"deadLetterQueue":false}`, []string{"completed", "failed", "completed"}, all(3, released), 1, false, 0, numbers(2, 5), nil},
		"dlq with both off":               {`{"dlqAfterMaxRetries":false,"deadLetterQueue":false}`, []string{"dlq"}, all(1, dead), 0, false, 0, numbers(1, 5), []string{"0"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, p := leased(t, 5, c.options)
			require.Equal(t, c.want, verdicts(b.Ack(t, "", statusesOf(p, c.statuses...)...)))
			row := b.DB.Cursor(t, q, "p", harness.QueueMode)
			require.Equal(t, c.committed, row.Committed)
			require.Equal(t, c.committed+1-skipped[name], row.TotalConsumed)
			require.Equal(t, c.held, row.Worker != nil && row.BatchEnd != nil, "lease")
			require.Equal(t, c.retries, row.RetryCount)
			if c.held {
				b.RequireNone(t, harness.PopPath(q, "batch=5"))
				b.DB.ExpireLeases(t, q)
			}
			require.Equal(t, c.next, emptyAsNil(b.Pop(t, q, "batch=5").Payloads()))
			require.ElementsMatch(t, c.dlq, deadPayloads(b.DLQ(t, q, "")))
		})
	}
}

func emptyAsNil(s []string) []string {
	if len(s) == 0 {
		return nil
	}
	return s
}

func deadPayloads(rows []harness.DeadLetter) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = string(r.Data)
	}
	return out
}

func TestAckStatusWords(t *testing.T) {
	t.Parallel()
	cases := map[string]string{ // JSON member -> meaning
		``:                           "completed",
		`,"status":null`:             "completed",
		`,"status":"completed"`:      "completed",
		`,"status":"success"`:        "completed",
		`,"status":"acked"`:          "completed",
		`,"status":"ok"`:             "completed",
		`,"status":"retry"`:          "retry",
		`,"status":"dlq"`:            "dlq",
		`,"status":"failed"`:         "failed",
		`,"status":""`:               "failed",
		`,"status":"Completed"`:      "failed",
		`,"status":"OK"`:             "failed",
		`,"status":" completed"`:     "failed",
		`,"status":"nack"`:           "failed",
		`,"status":"DLQ"`:            "failed",
		`,"status":"Retry"`:          "failed",
		`,"status":"compl\u0065ted"`: "completed",
	}
	for _, route := range []string{"single", "batch"} {
		for member, meaning := range cases {
			t.Run(route+member, func(t *testing.T) {
				t.Parallel()
				b, q, p := leased(t, 1, "")
				m := p.Messages[0]
				body := fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q%s}`, m.TransactionID, m.PartitionID, m.LeaseID, member)
				path := "/api/v1/ack"
				if route == "batch" {
					body, path = `{"acknowledgments":[`+body+`]}`, "/api/v1/ack/batch"
				}
				a := b.Post(t, path, body)
				require.Equal(t, http.StatusOK, a.Status, a)
				require.Equal(t, true, a.Objects(t)[0]["success"], a)
				row := b.DB.Cursor(t, q, "p", harness.QueueMode)
				got := map[[3]bool]string{
					{true, false, false}:  "completed",
					{false, true, false}:  "failed",
					{false, false, false}: "retry",
					{true, false, true}:   "dlq",
				}[[3]bool{row.Committed == 0, row.RetryCount == 1, len(b.DLQ(t, q, "")) == 1}]
				require.Equal(t, meaning, got)
			})
		}
	}
}

func TestAckBelowTheCursor(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 3, "")
	b.AckOK(t, "", p.Messages[1].Ack("completed"))
	require.Equal(t, []verdict{{success: true, noop: true}}, verdicts(b.Ack(t, "", p.Messages[0].Ack("completed"))))
	for _, status := range []string{"failed", "retry", "dlq"} {
		require.Equal(t, []verdict{{err: committedText}}, verdicts(b.Ack(t, "", p.Messages[0].Ack(status))), status)
	}
	require.Equal(t, []verdict{{success: true, noop: true}}, verdicts(b.Ack(t, "", p.Messages[1].Ack("completed"))), "a repeat")
	row := b.DB.Cursor(t, q, "p", harness.QueueMode)
	require.Equal(t, []any{int64(1), 0, true}, []any{row.Committed, row.RetryCount, row.Worker != nil})
	require.Empty(t, b.DLQ(t, q, ""))
	b.AckOK(t, "", p.Messages[2].Ack("completed"))
}

func TestRepeatedFullAckIsANoop(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 3, "")
	b.AckOK(t, "", p.Acks("completed")...)
	lease := p.Acks("completed")
	for _, r := range b.Ack(t, "", lease...) {
		require.False(t, r.Success, "the lease is over, so naming it is refused")
		require.Equal(t, leaseText, r.ErrorText())
	}
	for i := range lease {
		lease[i].LeaseID = ""
	}
	require.Equal(t, all(3, verdict{success: true, noop: true}), verdicts(b.Ack(t, "", lease...)))
	require.Equal(t, int64(2), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestNoopAndStaleBesideALiveItem(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 4, "")
	b.AckOK(t, "", p.Messages[1].Ack("completed"))
	got := b.Ack(t, "", p.Messages[0].Ack("completed"), p.Messages[1].Ack("failed"), p.Messages[3].Ack("completed"))
	require.Equal(t, []bool{true, false, true}, []bool{got[0].Success, got[1].Success, got[2].Success})
	require.Equal(t, []bool{true, false, false}, []bool{got[0].Noop, got[1].Noop, got[2].Noop})
	require.Equal(t, committedText, got[1].ErrorText())
	require.True(t, got[2].LeaseReleased)
	require.Equal(t, int64(3), b.DB.Committed(t, q, "p", harness.QueueMode))
}

func TestAckRepeatsAndOrderInOneRequest(t *testing.T) {
	t.Parallel()
	t.Run("the same message twice", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 2, "")
		b.AckOK(t, "", p.Messages[0].Ack("completed"), p.Messages[0].Ack("completed"))
		require.Equal(t, int64(0), b.DB.Committed(t, q, "p", harness.QueueMode))
	})
	t.Run("any order of items", func(t *testing.T) {
		t.Parallel()
		b, q, p := leased(t, 5, "")
		b.AckOK(t, "", statusesOf(p, "completed", "completed", "failed")[2], p.Messages[4].Ack("completed"), p.Messages[1].Ack("completed"))
		require.Equal(t, int64(1), b.DB.Committed(t, q, "p", harness.QueueMode))
	})
	for name, c := range map[string]struct {
		statuses []string
		dlq      bool
		retries  int
	}{
		"failed beats retry on one message": {[]string{"retry", "failed"}, false, 1},
		"dlq beats failed on one message":   {[]string{"failed", "dlq"}, true, 0},
		"a signal beats completed":          {[]string{"completed", "retry"}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, q, p := leased(t, 2, "")
			b.AckOK(t, "", p.Messages[0].Ack(c.statuses[0]), p.Messages[0].Ack(c.statuses[1]))
			row := b.DB.Cursor(t, q, "p", harness.QueueMode)
			require.Equal(t, c.retries, row.RetryCount)
			require.Len(t, b.DLQ(t, q, ""), map[bool]int{true: 1}[c.dlq])
			require.Nil(t, row.Worker)
		})
	}
}

func TestRepeatedIDResolvesToItsFirstCopyInTheSpan(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"dedupWindowSeconds":0}`)
	for i, id := range []string{"a", "b", "a", "c"} {
		b.PushQueued(t, harness.Item{Queue: q, TransactionID: id, Payload: i})
	}
	p := b.Pop(t, q, "batch=4")
	b.AckOK(t, "", p.Messages[2].Ack("completed")) // "a": the first copy is offset 0
	require.Equal(t, int64(0), b.DB.Committed(t, q, "Default", harness.QueueMode))
	b.AckOK(t, "", p.Messages[2].Ack("completed")) // the copy below does not shadow offset 2
	require.Equal(t, int64(2), b.DB.Committed(t, q, "Default", harness.QueueMode))
	b.AckOK(t, "", p.Messages[3].Ack("completed"))
	b.RequireNone(t, harness.PopPath(q, ""))
}

func TestFullBatchWithRepeatedIDsIsStillResolvedInOrder(t *testing.T) {
	t.Parallel()
	b, q := shared(t)
	b.Configure(t, q, `{"dedupWindowSeconds":0}`)
	for i, id := range []string{"a", "b", "a"} {
		b.PushQueued(t, harness.Item{Queue: q, TransactionID: id, Payload: i})
	}
	p := b.Pop(t, q, "batch=3")
	// Two of the three ids name the whole set of hashes, but not the last copy.
	b.AckOK(t, "", p.Messages[0].Ack("completed"), p.Messages[1].Ack("completed"))
	row := b.DB.Cursor(t, q, "Default", harness.QueueMode)
	require.Equal(t, int64(1), row.Committed)
	require.NotNil(t, row.Worker)
}

func TestPartialAckThenExpiryResumesBehindTheCursor(t *testing.T) {
	t.Parallel()
	b, q, p := leased(t, 3, "")
	b.AckOK(t, "", p.Messages[1].Ack("completed"))
	b.DB.ExpireLeases(t, q)
	require.Equal(t, numbers(2, 3), b.Pop(t, q, "").Payloads())
}
