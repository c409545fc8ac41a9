package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/queenmq/queen/services/tests/harness"
)

// requireOverloaded requires the answer that existing clients repeat.
func requireOverloaded(t *testing.T, a harness.Answer) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.Status, a)
	require.NotEmpty(t, a.ErrorText(t))
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, seconds)
}

func TestBodiesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "QUEEN_MAX_BODY_BYTES=1000000", "QUEEN_MAX_INFLIGHT_BYTES=1000000")
	q := queueName(t)
	body := fmt.Sprintf(`{"items":[{"queue":%q,"payload":"%s"}]}`, q, strings.Repeat("x", 900000))
	slow := dial(t, b)
	slow.send(t, fmt.Sprintf("POST /api/v1/push HTTP/1.1\nHost: queen\nContent-Length: %d\nExpect: 100-continue\n\n", len(body)))
	require.True(t, strings.HasPrefix(slow.head(t), "HTTP/1.1 100"), "its bytes are reserved now")

	refused := fmt.Appendf(nil, `{"items":[{"queue":%q,"payload":"%s"}]}`, q+"-2", strings.Repeat("y", 200000))
	a, err := b.Call(t.Context(), http.MethodPost, "/api/v1/push", refused)
	require.NoError(t, err)
	requireOverloaded(t, a)
	require.False(t, b.DB.HasQueue(t, q+"-2"), "nothing stored")

	_, err = io.WriteString(slow, body)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(slow.head(t), "HTTP/1.1 201"), "the slow one is served")
	a, err = b.Call(t.Context(), http.MethodPost, "/api/v1/push", refused)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.Status, a)
}

func TestWaitingForTheDatabaseIsBounded(t *testing.T) {
	t.Parallel()
	b := harness.StartOne(t, "DB_POOL_SIZE=2", "QUEEN_STMT_TIMEOUT_MS=60000", "QUEEN_PUSH_DEADLINE_MS=60000")
	q := queueName(t)
	b.PushTogether(t, q, "p", 2)
	p := b.Pop(t, q, "batch=1")
	release := lockTable(t, b, "log_consumers")
	first := park(t.Context(), b, harness.PopPath(q, "consumerGroup=g"))
	harness.Eventually(t, 10*time.Second, "the slot is taken", func() bool { return waitingStatements(t, b) > 0 })

	type call struct{ method, path, body string }
	answers := make(chan harness.Answer)
	calls := []call{
		{"GET", harness.PopPath(q, "consumerGroup=h"), ""},
		{"POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":1}]}`, q+"-2")},
		{"POST", "/api/v1/ack/batch", `{"acknowledgments":[` + mustJSON(t, p.Messages[0].Ack("completed")) + `]}`},
		{"POST", "/api/v1/transaction", fmt.Sprintf(`{"operations":[{"type":"push","queue":%q,"payload":1}]}`, q+"-2")},
	}
	for _, c := range calls {
		go func() {
			var body []byte
			if c.body != "" {
				body = []byte(c.body)
			}
			a, err := b.Call(context.WithoutCancel(t.Context()), c.method, c.path, body)
			if err != nil {
				t.Error(err)
			}
			answers <- a
		}()
	}
	for range calls {
		requireOverloaded(t, <-answers)
	}
	require.False(t, b.DB.HasQueue(t, q+"-2"), "nothing stored")
	release()
	require.Equal(t, numbers(0, 2), first.answer(t).Payloads())
	b.AckOK(t, "", p.Acks("completed")...)
}
